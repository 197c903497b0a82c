#include <refrain/core/check.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;
namespace fs = std::filesystem;

namespace {

fs::path save(const fs::path& run_dir, std::int64_t step, const std::string& content = "weights") {
  SnapshotWriter writer(snapshot_directory(run_dir, step));
  writer.add("model.safetensors", [&](FileWriter& file) { file.write(content); });
  writer.add("trainer state.json", [&](FileWriter& file) { file.write("{}"); });
  writer.commit();
  return snapshot_directory(run_dir, step);
}

}  // namespace

TEST_CASE("snapshots: the newest by number is found, though another was written later") {
  const ScratchDirectory run;
  CHECK(!find_latest_snapshot(run.path()).latest);
  save(run.path(), 100);
  save(run.path(), 9);
  const SnapshotSearch search = find_latest_snapshot(run.path());
  CHECK(search.latest == snapshot_directory(run.path(), 100));
  CHECK(search.skipped.empty());
}

TEST_CASE("snapshots: any cut, changed or missing file makes resume take the one before and say why") {
  const ScratchDirectory run;
  const fs::path whole = save(run.path(), 1);
  for (const char* name : {"MANIFEST", "model.safetensors", "trainer state.json"}) {
    const fs::path torn = save(run.path(), 2);
    const auto size = fs::file_size(torn / name);
    SECTION(std::string(name) + " cut") { fs::resize_file(torn / name, size - 1); }
    SECTION(std::string(name) + " grown") { fs::resize_file(torn / name, size + 1); }
    SECTION(std::string(name) + " missing") { fs::remove(torn / name); }
    SECTION(std::string(name) + " changed") {
      std::string text = read_text_file(torn / name);
      text[text.size() / 2] ^= 1;
      fs::remove(torn / name);
      write_file_atomically(torn / name, text);
    }
  }
  // Outside the sections step 2 is whole.
  const SnapshotSearch search = find_latest_snapshot(run.path());
  if (search.latest == snapshot_directory(run.path(), 2)) return;
  CHECK(search.latest == whole);
  REQUIRE(search.skipped.size() == 1);
  CHECK(search.skipped[0].path == snapshot_directory(run.path(), 2));
  CHECK(search.skipped[0].reason.find("step-2") != std::string::npos);
}

TEST_CASE("snapshots: one that was not committed leaves nothing, a dead process's is skipped and named") {
  const ScratchDirectory run;
  {
    SnapshotWriter writer(snapshot_directory(run.path(), 5));
    writer.add("model.safetensors", [](FileWriter& file) { file.write("half"); });
  }
  CHECK(fs::is_empty(run / "snapshots"));
  run.write("snapshots/.step-7.tmp-999999999-0/model.safetensors", "half");
  const SnapshotSearch search = find_latest_snapshot(run.path());
  CHECK(!search.latest);
  REQUIRE(search.skipped.size() == 1);
  CHECK(search.skipped[0].reason.find("still being written") != std::string::npos);
}

TEST_CASE("snapshots: writing a step again replaces it") {
  const ScratchDirectory run;
  save(run.path(), 3, "old");
  save(run.path(), 3, "newer");
  CHECK(read_text_file(snapshot_directory(run.path(), 3) / "model.safetensors") == "newer");
  CHECK(find_latest_snapshot(run.path()).latest == snapshot_directory(run.path(), 3));
  CHECK(std::distance(fs::directory_iterator(run / "snapshots"), {}) == 1);
}

TEST_CASE("snapshots: pruning keeps the newest whole ones and removes leftovers of dead processes") {
  const ScratchDirectory run;
  for (const int step : {1, 2, 3, 4}) save(run.path(), step);
  fs::resize_file(snapshot_directory(run.path(), 4) / "model.safetensors", 1);
  run.write("snapshots/.step-9.tmp-999999999-0/model.safetensors", "half");
  prune_snapshots(run.path(), 2);
  CHECK(find_latest_snapshot(run.path()).latest == snapshot_directory(run.path(), 3));
  CHECK(fs::exists(snapshot_directory(run.path(), 2)));
  CHECK(!fs::exists(snapshot_directory(run.path(), 1)));
  CHECK(!fs::exists(run / "snapshots/.step-9.tmp-999999999-0"));
  CHECK_THROWS_AS(prune_snapshots(run.path(), 0), InvalidArgument);
}

TEST_CASE("snapshots: a name that leaves the directory is refused, in the writer and in a MANIFEST") {
  const ScratchDirectory run;
  SnapshotWriter writer(snapshot_directory(run.path(), 1));
  CHECK_THROWS_AS(writer.add("../outside", [](FileWriter&) {}), InvalidArgument);
  CHECK_THROWS_AS(writer.add("MANIFEST", [](FileWriter&) {}), InvalidArgument);
}
