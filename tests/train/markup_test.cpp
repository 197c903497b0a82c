#include <refrain/tests/support/catch.h>
#include <refrain/train/markup.h>

#include <clocale>
#include <string>

using namespace refrain;

TEST_CASE("markup: text stays text between tags and in attributes") {
  CHECK(escaped("a <b> & \"c\" 'd' é") == "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; é");
  CHECK(escaped("") == "");
}

TEST_CASE("markup: numbers have a point in every locale") {
  const std::string old = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"C", "de_DE.UTF-8", "fr_FR.UTF-8"}) {  // those that are installed
    if (!std::setlocale(LC_ALL, name)) continue;
    CHECK(fixed(1.25, 1) == "1.2");
    CHECK(fixed(-0.5, 2) == "-0.50");
    CHECK(fixed(99.999, 2) == "100.00");
    CHECK(fixed(1e300, 1).size() == 303);
  }
  std::setlocale(LC_ALL, old.c_str());
}
