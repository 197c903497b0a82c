#include <refrain/core/io/safetensors.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string message_of(const ScratchDirectory& scratch, const std::string& bytes) {
  const std::filesystem::path path = scratch.write("hostile.safetensors", bytes);
  try {
    const SafetensorsFile file(path);
  } catch (const DataError& error) {
    REQUIRE(std::string(error.what()).find(path.string()) == 0);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("safetensors: every dtype, scalars, empty tensors and strided views come back bit by bit") {
  const ScratchDirectory scratch;
  const Tensor matrix = from_values<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  std::vector<NamedTensor> tensors{{"transposed", view::transpose(matrix, 0, 1)},
                                   {"f64", from_values<double>({0.1, -2}, {2})},
                                   {"f16", from_values<f16>(std::vector<f16>{f16(1.5f)}, {1})},
                                   {"bf16", from_values<bf16>(std::vector<bf16>{bf16(2.5f)}, {1})},
                                   {"i64", from_values<std::int64_t>({-5}, {})},
                                   {"i32", from_values<std::int32_t>({7, 8, 9}, {3})},
                                   {"u8", from_values<std::uint8_t>({1, 2, 3}, {3})},
                                   {"bool", full({2}, 1, DType::boolean)},
                                   {"empty", empty({2, 0}, DType::f32)}};
  write_safetensors(scratch / "all.safetensors", tensors, {{"step", "12"}, {"by", "a \"test\""}});

  const SafetensorsFile file(scratch / "all.safetensors");
  CHECK(file.entries().size() == tensors.size());
  CHECK(file.metadata() == SafetensorsMetadata{{"step", "12"}, {"by", "a \"test\""}});
  for (const NamedTensor& expected : tensors) {
    const Tensor found = file.read(expected.name);
    CHECK(found.dtype() == expected.tensor.dtype());
    CHECK(found.shape() == expected.tensor.shape());
    CHECK(found.to_vector<double>() == expected.tensor.to_vector<double>());
  }
}

TEST_CASE("safetensors: the data starts at a multiple of 8 and each tensor at a multiple of its element size") {
  const ScratchDirectory scratch;
  for (int extra = 0; extra < 9; ++extra) {
    write_safetensors(scratch / "a", {{std::string(std::size_t(extra + 1), 'n'), from_values<std::uint8_t>({1, 2, 3}, {3})},
                                      {"wide", from_values<double>({1}, {1})}});
    const SafetensorsFile file(scratch / "a");
    const FileReader bytes(scratch / "a");
    CHECK((bytes.size() - 11) % 8 == 0);
    CHECK(file.find("wide")->begin % 8 == 0);
  }
}

TEST_CASE("safetensors: zero-size and scalar tensors are valid, a header {} holds no tensors") {
  const ScratchDirectory scratch;
  const float seven = 7;
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[2,0],"data_offsets":[4,4]},)"
      R"("c":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const SafetensorsFile file(scratch.write("a", file_of(header, std::string(reinterpret_cast<const char*>(&seven), 4))));
  CHECK(file.read("a").numel() == 0);
  CHECK(file.read("b").numel() == 0);
  CHECK(file.read("c").item() == 7);
  CHECK(SafetensorsFile(scratch.write("b", file_of("{}", ""))).entries().empty());
  CHECK(SafetensorsFile(scratch.write("c", file_of("{}      ", ""))).entries().empty());
}

TEST_CASE("safetensors: lengths, shapes and offsets that do not add up are refused with file and tensor") {
  const ScratchDirectory scratch;
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string four(4, '\0');
  CHECK(message_of(scratch, "1234567").find("at least 8 bytes, found 7") != std::string::npos);
  CHECK(message_of(scratch, file_of("", "")).find("does not begin with '{'") != std::string::npos);
  std::string long_header = file_of(std::string(64, ' '), "");
  long_header[0] = char(0xe8), long_header[1] = 3;  // 1000 in a file of 72 bytes
  CHECK(message_of(scratch, long_header).find("header of 1000 bytes in a file of 72") != std::string::npos);
  CHECK(message_of(scratch, std::string(16, '\xff')).find("at most 100000000") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1000,1000]", "[0,4]"), four))
            .find("'w': shape [1000, 1000] of f32 takes 4000000 bytes") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1]", "[8,4]"), four)).find("'w': data_offsets [8, 4] are reversed") !=
        std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[4]", "[0,16]"), four)).find("'w': data_offsets [0, 16] run past the end") !=
        std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1]", "[0,4]"), four + "XYZ")).find("3 bytes after the last tensor") !=
        std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1]", "[4,8]"), four + four)).find("(a hole)") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[4294967296,4294967296]", "[0,4]"), four)).find("larger than any file") !=
        std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[99999999999999999999999]", "[0,4]"), four)).find("'w'") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[-1]", "[0,4]"), four)).find("'w'") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1.5]", "[0,4]"), four)).find("'w'") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[[1]]", "[0,4]"), four)).find("unexpected a list") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), four)).find("more than 8 dims") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F32", "[1]", "[0,4,8]"), four)).find("two numbers") != std::string::npos);
  CHECK(message_of(scratch, file_of(tensor("F8_E4M3", "[4]", "[0,4]"), four)).find("'w': dtype F8_E4M3") != std::string::npos);
  CHECK(message_of(scratch, file_of(R"({"w":{"dtype":"F32","shape":[1]}})", four)).find("'w': expected dtype, shape") != std::string::npos);
  CHECK(message_of(
            scratch,
            file_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four))
            .find("'w': the name occurs twice") != std::string::npos);
  CHECK(message_of(scratch,
                   file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                           four + "xx"))
            .find("overlaps") != std::string::npos);
  CHECK(message_of(scratch, file_of("{\"w\":", four)).find("not valid JSON") != std::string::npos);
  CHECK(message_of(scratch, file_of("{}{}", "")).find("not valid JSON") != std::string::npos);
  CHECK(message_of(scratch, file_of("{" + std::string(100'000, '['), "")).find("not valid JSON") != std::string::npos);
  CHECK(message_of(scratch, file_of("{\"w\":" + std::string(100'000, '['), "")).find("unexpected a list") != std::string::npos);
}

TEST_CASE("safetensors: reading into a tensor of another shape or dtype names expected and found") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a", {{"w", from_values<float>({1, 2}, {2})}});
  const SafetensorsFile file(scratch / "a");
  CHECK_THROWS_WITH(file.read_into("w", empty({3}, DType::f32)), Catch::Contains("'w': expected f32 [3], found f32 [2]"));
  CHECK_THROWS_WITH(file.read_into("w", empty({2}, DType::f64)), Catch::Contains("expected f64 [2], found f32 [2]"));
  CHECK_THROWS_WITH(file.read("v"), Catch::Contains("'v' is missing"));
}

TEST_CASE("safetensors: two tensors of one name are refused before anything is written") {
  const ScratchDirectory scratch;
  const Tensor t = from_values<float>({1}, {1});
  CHECK_THROWS_AS(write_safetensors(scratch / "a", {{"w", t}, {"w", t}}), InvalidArgument);
  CHECK(!std::filesystem::exists(scratch / "a"));
}

TEST_CASE("safetensors: a file with any bytes changed, removed or added loads or is refused, and never does anything else") {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "good", {{"a", from_values<float>({1, 2, 3, 4}, {2, 2})}, {"b", from_values<std::int64_t>({5}, {})}},
                    {{"key", "value"}});
  const std::string good = read_text_file(scratch / "good");
  std::uint32_t random = 12345;
  const auto next = [&](std::size_t below) { return std::size_t((random = random * 1664525u + 1013904223u) >> 8) % below; };
  int loaded = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    for (std::size_t change = 0; change <= next(3); ++change) {
      const std::size_t at = next(bytes.size());
      switch (next(4)) {
        case 0: bytes[at] = char(next(256)); break;
        case 1: bytes[at] = "0123456789-[]{}\",:"[next(18)]; break;
        case 2: bytes.erase(at, 1 + next(8)); break;
        default: bytes.insert(at, std::string(1 + next(4), char(next(256))));
      }
    }
    try {
      const SafetensorsFile file(scratch.write("changed", bytes));
      for (const SafetensorsFile::Entry& entry : file.entries()) CHECK(file.read(entry.name).numel() >= 0);
      ++loaded;
    } catch (const DataError&) {
      ++refused;
    }
  }
  CHECK(loaded > 10);  // changes in the data are no error of the format
  CHECK(refused > 500);
}
