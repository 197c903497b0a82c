// The interpreter's warps and blocks: divergence, exchanges between lanes, barriers, atomics, asynchronous copies, calls.
#include <refrain/tests/cuda/ptx/program.h>

using namespace refrain::testing;

namespace {

// 32 lanes (or more), each result the low word.
std::vector<std::uint32_t> lanes(const std::string& body, Shape shape = {.threads = 32}, const std::string& before = "") {
  std::vector<std::uint32_t> result;
  for (const std::uint64_t each : run(body + "\nst.global.u32 [%out], %r0;", {}, 0, 1, shape, before))
    result.push_back(std::uint32_t(each));
  return result;
}

}  // namespace

TEST_CASE("ptx shfl: every mode, with segments, and the predicate tells what was in range") {
  const auto up = lanes("shfl.sync.up.b32 %r0, %tid, 1, 0, -1;");
  const auto down = lanes("shfl.sync.down.b32 %r0, %tid, 3, 31, -1;");
  const auto bfly = lanes("shfl.sync.bfly.b32 %r0, %tid, 5, 31, -1;");
  const auto in_eights = lanes("shfl.sync.idx.b32 %r0, %tid, 2, 0x181f, -1;");
  const auto in_range = lanes("shfl.sync.down.b32 %r1|%p0, %tid, 3, 31, -1; selp.u32 %r0, 1, 0, %p0;");
  for (unsigned l = 0; l < 32; ++l) {
    CHECK(up[l] == (l == 0 ? 0 : l - 1));
    CHECK(down[l] == (l + 3 < 32 ? l + 3 : l));
    CHECK(bfly[l] == (l ^ 5));
    CHECK(in_eights[l] == l / 8 * 8 + 2);
    CHECK(in_range[l] == (l + 3 < 32));
  }
}

TEST_CASE("ptx: half warps meet under masks of their own, wherever they come from") {
  // The halves branch apart, each sums its lanes by butterflies, and they join again.
  const std::string half =
      "mov.u32 %r0, %tid; mov.u32 %r1, 8; $LOOP: shfl.sync.bfly.b32 %r2, %r0, %r1, 31, %r5; add.u32 %r0, %r0, %r2;"
      "shr.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra $LOOP;";
  const auto sums = lanes(
      "setp.lt.u32 %p0, %tid, 16; selp.u32 %r5, 0xffff, 0xffff0000, %p0; @%p0 bra $LOW; add.u32 %r9, %tid, 1; $LOW:" + half);
  for (unsigned l = 0; l < 32; ++l) CHECK(sums[l] == (l < 16 ? 120 : 376));
}

TEST_CASE("ptx: vote, match, redux and activemask") {
  const auto ballot = lanes("setp.lt.u32 %p0, %tid, 5; vote.sync.ballot.b32 %r0, %p0, -1;");
  const auto any = lanes("setp.eq.u32 %p0, %tid, 5; vote.sync.any.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;");
  const auto all = lanes("setp.eq.u32 %p0, %tid, 5; vote.sync.all.pred %p1, !%p0, -1; selp.u32 %r0, 1, 0, %p1;");
  const auto match = lanes("and.b32 %r1, %tid, 3; match.any.sync.b32 %r0, %r1, -1;");
  const auto sum = lanes("redux.sync.add.s32 %r0, %tid, -1;");
  const auto active = lanes("mov.u32 %r0, 0; setp.gt.u32 %p0, %tid, 3; @%p0 bra $END; activemask.b32 %r0; $END:");
  for (unsigned l = 0; l < 32; ++l) {
    CHECK(ballot[l] == 31);
    CHECK(any[l] == 1);
    CHECK(all[l] == 0);
    CHECK(match[l] == 0x11111111u << (l % 4));
    CHECK(sum[l] == 496);
    CHECK(active[l] == (l > 3 ? 0 : 15));
  }
}

TEST_CASE("ptx: lanes loop a different number of times and join behind the loop") {
  const auto squares = lanes(
      "mov.u32 %r0, 0; mov.u32 %r1, 0; $TOP: setp.ge.u32 %p0, %r1, %tid; @%p0 bra $DONE; add.u32 %r0, %r0, %tid;"
      "add.u32 %r1, %r1, 1; bra.uni $TOP; $DONE: shfl.sync.idx.b32 %r2, %r0, 31, 31, -1; add.u32 %r0, %r0, %r2;");
  for (unsigned l = 0; l < 32; ++l) CHECK(squares[l] == l * l + 961);
}

TEST_CASE("ptx: jump tables") {
  const auto chosen = lanes("and.b32 %r1, %tid, 3; setp.gt.u32 %p0, %r1, 2; mov.u32 %r0, 7; @%p0 bra $OUT;"
                            "$TABLE: .branchtargets $A, $B, $C; brx.idx %r1, $TABLE;"
                            "$A: mov.u32 %r0, 10; bra $OUT; $B: mov.u32 %r0, 11; bra $OUT; $C: mov.u32 %r0, 12; $OUT:");
  for (unsigned l = 0; l < 32; ++l) CHECK(chosen[l] == (l % 4 == 3 ? 7 : 10 + l % 4));
}

TEST_CASE("ptx: a block's threads exchange values through shared memory, in any order of its warps") {
  const std::string reversed =
      "shl.b32 %r1, %tid, 2; mov.u32 %r2, tile; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %tid; bar.sync 0;"
      "mov.u32 %r3, 127; sub.u32 %r3, %r3, %tid; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %r0, [%r3];";
  for (const ptx::Order order : {ptx::Order::forward, ptx::Order::reverse, ptx::Order::random}) {
    const auto result = lanes(".shared .align 4 .b8 tile[512];\n" + reversed, {.threads = 128, .order = order});
    for (unsigned l = 0; l < 128; ++l) CHECK(result[l] == 127 - l);
  }
  // Dynamic shared memory lies behind the static one.
  const auto dynamic = lanes(reversed, {.threads = 128, .shared_bytes = 512}, ".extern .shared .align 16 .b8 tile[];\n");
  for (unsigned l = 0; l < 128; ++l) CHECK(dynamic[l] == 127 - l);
}

TEST_CASE("ptx: what no device survives is an error that names instruction and thread") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(lanes("mov.u32 %r1, 512; ld.shared.u32 %r0, [%r1];", {.threads = 32, .shared_bytes = 512}),
                    Contains("outside the block's 512 bytes"));
  CHECK_THROWS_WITH(
      lanes("mov.u32 %r0, 0; setp.eq.u32 %p0, %tid, 40; @%p0 bra $A; bar.sync 0; bra $B; $A: bar.sync 0; $B:", {.threads = 64}),
      Contains("different barriers"));
  CHECK_THROWS_WITH(
      lanes("setp.eq.u32 %p0, %tid, 3; mov.u32 %r0, 0; @%p0 bra $A; shfl.sync.idx.b32 %r0, %tid, 0, 31, -1; $A: bar.sync 0;"),
      Contains("deadlock"));
  CHECK_THROWS_WITH(lanes("mov.u64 %rd0, 0; ld.global.u32 %r0, [%rd0];"), Contains("null address"));
}

TEST_CASE("ptx: bar.red counts and joins predicates over the block") {
  const auto count = lanes("setp.lt.u32 %p0, %tid, 50; bar.red.popc.u32 %r0, 0, %p0;", {.threads = 96});
  const auto any = lanes("setp.eq.u32 %p0, %tid, 70; bar.red.or.pred %p1, 0, %p0; selp.u32 %r0, 1, 0, %p1;", {.threads = 96});
  for (unsigned l = 0; l < 96; ++l) CHECK((count[l] == 50 && any[l] == 1));
}

TEST_CASE("ptx: atomics on global and shared memory") {
  const std::string head = "ld.param.u64 %rd0, [test_param_1]; st.global.u32 [%rd0], 0;";
  const Words sum = run(head + "bar.sync 0; atom.global.add.u32 %r0, [%rd0], %tid;", {}, 0, 1, {.threads = 64});
  CHECK(std::uint32_t(sum[0]) == 2016);
  const auto largest = lanes(
      ".shared .align 8 .b8 cell[16]; mov.u32 %r1, cell; setp.eq.u32 %p0, %tid, 0; @%p0 st.shared.u32 [%r1], 5; bar.sync 0;"
      "red.shared.max.u32 [%r1], %tid; bar.sync 0; ld.shared.u32 %r0, [%r1];",
      {.threads = 64});
  CHECK(largest[17] == 63);
  const auto winner = lanes(
      ".shared .align 8 .b8 cell[16]; mov.u32 %r1, cell; setp.eq.u32 %p0, %tid, 0; @%p0 st.shared.u32 [%r1], 0; bar.sync 0;"
      "add.u32 %r3, %tid, 1; atom.shared.cas.b32 %r2, [%r1], 0, %r3; bar.sync 0; ld.shared.u32 %r0, [%r1];",
      {.threads = 64});
  CHECK(winner[5] == 1);
}

TEST_CASE("ptx cp.async: bytes arrive at the wait and not before; the rest is zeroed") {
  const std::string copy =
      ".shared .align 16 .b8 tile[16]; mov.u32 %r1, tile; cp.async.ca.shared.global [%r1], [%in], 16, 8; cp.async.commit_group;";
  const std::string read =
      "ld.shared.u64 %rd1, [%r1]; st.global.u64 [%out], %rd1; ld.shared.u64 %rd2, [%r1+8]; st.global.u64 [%out+8], %rd2;";
  alignas(16) static const std::uint64_t source[2] = {42, 43};
  const std::string from = "mov.u64 %in, " + std::to_string(reinterpret_cast<std::uintptr_t>(source)) + ";";
  CHECK(run(from + copy + "cp.async.wait_group 0;" + read, {}, 0, 2) == Words{42, 0});
  CHECK(run(from + copy + "cp.async.wait_group 1;" + read, {}, 0, 2) == Words{~0ull, ~0ull});
  CHECK(run(from + copy + "cp.async.wait_all;" + read, {}, 0, 2) == Words{42, 0});
}

TEST_CASE("ptx: device functions, constants of the file and local memory") {
  const std::string file =
      ".global .align 4 .u32 table[4] = {5, 6, 7, 0x8};\n.const .align 8 .b8 bytes[8] = {1, 2, 3};\n"
      ".func (.param .b32 result) twice(.param .b32 twice_param_0)\n{ .reg .b32 %r<3>; .reg .pred %p<2>;\n"
      "ld.param.u32 %r1, [twice_param_0]; add.u32 %r2, %r1, %r1; setp.gt.u32 %p1, %r1, 6; @%p1 bra $L; st.param.b32 [result], "
      "%r2; ret;\n"
      "$L: st.param.b32 [result], 99; ret; }\n";
  const auto result = lanes(
      "and.b32 %r1, %tid, 3; mul.wide.u32 %rd0, %r1, 4; mov.u64 %rd1, table; add.s64 %rd1, %rd1, %rd0; ld.global.u32 %r2, [%rd1];"
      "{ .param .b32 p0; st.param.b32 [p0], %r2; .param .b32 r0; call.uni (r0), twice, (p0); ld.param.b32 %r3, [r0]; }"
      ".local .align 8 .b8 depot[8]; mov.u64 %rd4, depot; cvta.local.u64 %rd5, %rd4; st.u32 [%rd5+4], %r3; ld.local.u32 %r4, "
      "[%rd4+4];"
      "ld.const.u8 %r5, [bytes+2]; add.u32 %r0, %r4, %r5;",
      {.threads = 32}, file);
  const unsigned expected[] = {13, 15, 102, 102};
  for (unsigned l = 0; l < 32; ++l) CHECK(result[l] == expected[l % 4]);
}
