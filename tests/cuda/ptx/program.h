// A small PTX program around a few lines of body: lane l reads words of the input and writes words of the output.
#pragma once

#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/tests/support/catch.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace refrain::testing {

namespace ptx = emulator::ptx;

using Words = std::vector<std::uint64_t>;

inline std::uint64_t word(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint64_t word(double x) { return std::bit_cast<std::uint64_t>(x); }
inline float to_float(std::uint64_t x) { return std::bit_cast<float>(std::uint32_t(x)); }

// %in and %out point at this thread's words, `num_in` and `num_out` of 8 bytes each; %tid is its number. The body may use
// registers %p0-%p9, %h0-%h9 (16 bits), %r0-%r29, %f0-%f29, %rd0-%rd19, %fd0-%fd9, and declare what else it needs.
inline std::string program(const std::string& body, int num_in, int num_out, const std::string& before = "") {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + before +
         ".visible .entry test(\n .param .u64 .ptr .align 1 test_param_0,\n .param .u64 test_param_1\n)\n{\n"
         ".reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<30>; .reg .f32 %f<30>; .reg .b64 %rd<20>; .reg .f64 %fd<10>;\n"
         ".reg .b32 %tid; .reg .b64 %in, %out, %at;\n"
         "ld.param.u64 %in, [test_param_0]; ld.param.u64 %out, [test_param_1];\n"
         "mov.u32 %tid, %tid.x;\n"
         "mul.wide.u32 %at, %tid, " + std::to_string(8 * num_in) + "; add.s64 %in, %in, %at;\n"
         "mul.wide.u32 %at, %tid, " + std::to_string(8 * num_out) + "; add.s64 %out, %out, %at;\n" + body + "\nret;\n}\n";
}

struct Shape {
  unsigned threads = 1, blocks = 1;
  std::size_t shared_bytes = 0;
  ptx::Order order = ptx::Order::forward;
};

// The output words of all threads.
inline Words run(const std::string& body, Words in, int num_in, int num_out, Shape shape = {}, const std::string& before = "") {
  ptx::Module module(program(body, num_in, num_out, before));
  Words out(std::size_t(num_out) * shape.threads, 0xabababababababab);
  in.resize(std::max(in.size(), std::size_t(num_in) * shape.threads + 1));
  const void* parameters[] = {in.data(), out.data()};
  ptx::execute(module.function("test"), {shape.blocks, 1, 1}, {shape.threads, 1, 1}, shape.shared_bytes,
               reinterpret_cast<const std::byte*>(parameters), shape.order, 1);
  return out;
}

// One thread, up to three inputs in `suffix` registers a, b, c, one result d, of one type.
inline std::uint64_t one(const std::string& instruction, const std::string& type, Words in) {
  const std::string kind = type == "f64" ? ".b64" : type.ends_with("64") ? ".b64" : type.ends_with("16") ? ".b16" : ".b32";
  std::string body = ".reg " + kind + " %a, %b, %c, %d;\n";
  const char* names[] = {"%a", "%b", "%c"};
  for (std::size_t k = 0; k < in.size(); ++k)
    body += "ld.global" + kind + " " + names[k] + ", [%in+" + std::to_string(8 * k) + "];\n";
  body += instruction + ";\nst.global" + kind + " [%out], %d;";
  const std::uint64_t result = run(body, in, int(in.size()), 1)[0];
  return kind == ".b64" ? result : kind == ".b32" ? result & 0xffffffff : result & 0xffff;
}

}  // namespace refrain::testing
