// report.html as a file: what is put in stays data, nothing is loaded from elsewhere, and without JavaScript the numbers are
// there as text. What the page does in a browser is tests/browser/report_test.sh.
#include <refrain/train/report_html/report_html.h>

#include <refrain/core/check.h>
#include <refrain/tests/support/catch.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace refrain {

namespace {

using nlohmann::json;

std::string sample_text() {
  std::ifstream file(std::string(REFRAIN_SOURCE_DIR) + "/tests/browser/hostile.json");
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Between the opening and the first closing tag, as a browser reads it.
std::string embedded(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"memory\">";
  const std::size_t begin = page.find(open);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = page.find("</script", begin);
  REQUIRE(end != std::string::npos);
  return page.substr(begin + open.size(), end - begin - open.size());
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

}  // namespace

TEST_CASE("report_html: the embedded JSON is the one given, odd characters and all", "[train]") {
  const std::string text = sample_text();
  REQUIRE(text.find("</script>") != std::string::npos);  // the sample is as hostile as it claims
  REQUIRE(text.find("\xe2\x80\xa8") != std::string::npos);
  REQUIRE(text.find("{{css}}") != std::string::npos);
  CHECK(json::parse(embedded(report_html(text))) == json::parse(text));
}

TEST_CASE("report_html: nothing of the data becomes markup", "[train]") {
  const std::string page = report_html(sample_text());
  const std::string data = embedded(page);
  CHECK(data.find('<') == std::string::npos);
  CHECK(data.find('>') == std::string::npos);
  CHECK(data.find('&') == std::string::npos);
  CHECK(data.find("\xe2\x80\xa8") == std::string::npos);
  // As many tags as in a report of harmless names.
  json harmless = json::parse(sample_text());
  harmless["title"] = "a";
  for (json& module : harmless["modules"]) module = "m";
  for (json& group : harmless["groups"]) group["name"] = "g";
  const std::string other = report_html(harmless.dump());
  CHECK(count(page, "<script") == count(other, "<script"));
  CHECK(count(page, "</script") == count(other, "</script"));
  CHECK(count(page, "<img") == count(other, "<img"));
  CHECK(count(page, "</noscript") == 1);
  CHECK(count(page, "<title>") == 1);
}

TEST_CASE("report_html: loads nothing, and is not much larger than its data", "[train]") {
  const std::string text = sample_text(), page = report_html(text);
  const std::string around = page.substr(0, page.find(embedded(page))) + page.substr(page.find(embedded(page)) + embedded(page).size());
  CHECK(around.find("http://") == std::string::npos);
  CHECK(around.find("https://") == std::string::npos);
  CHECK(around.find("src=") == std::string::npos);
  CHECK(around.find("@import") == std::string::npos);
  CHECK(around.find("url(") == std::string::npos);
  CHECK(page.find("default-src 'none'") != std::string::npos);
  CHECK(page.find("{{js}}") == std::string::npos);
  CHECK(page.size() < text.size() + 100'000);
}

TEST_CASE("report_html: without JavaScript the peak stands there in words", "[train]") {
  json memory = json::parse(sample_text());
  const std::string page = report_html(memory.dump());
  const std::string words = page.substr(page.find("<noscript>"), page.find("</noscript>") - page.find("<noscript>"));
  CHECK(words.find("JavaScript") != std::string::npos);
  CHECK(words.find("(" + std::to_string(memory["peak_bytes"].get<std::int64_t>()) + " bytes)") != std::string::npos);
  CHECK(words.find("saved") != std::string::npos);
  CHECK(words.find("&lt;/script&gt;") != std::string::npos);
}

TEST_CASE("report_html: what is no memory.json is refused", "[train]") {
  CHECK_THROWS_AS(report_html(""), DataError);
  CHECK_THROWS_AS(report_html("{\"title\": \"cut"), DataError);
  CHECK_THROWS_AS(report_html("[1, 2]"), DataError);
  CHECK_THROWS_AS(report_html("{\"title\": 3}"), DataError);
  json memory = json::parse(sample_text());
  memory["peak"]["blocks"][0][2] = 99;  // a kind that there is not
  CHECK_THROWS_AS(report_html(memory.dump()), DataError);
  memory = json::parse(sample_text());
  CHECK_THROWS_AS(report_html(memory.dump().replace(0, 1, "{\"x\":\"\xff\",")), DataError);
}

}  // namespace refrain
