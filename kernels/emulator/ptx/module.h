// PTX as the interpreter executes it: a function is a list of compact instructions over one register file a warp.
//
// A register is a column of 32 lanes (4 or 8 bytes each) at a fixed offset of the register file; a predicate is one bit a
// lane. Constants, special registers and addresses of variables are columns as well, so that every operand of an instruction
// is an offset and nothing is looked up while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::emulator::ptx {

// PTX that the interpreter does not know, or that does what no device allows.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type : std::uint8_t {
  none, pred, u8, u16, u32, u64, s8, s16, s32, s64, b8, b16, b32, b64, b128, f16, bf16, f32, f64, f16x2, bf16x2, tf32
};
std::size_t size_of(Type type);  // in bytes; a predicate has 0

enum class Space : std::uint8_t { generic, global, shared, local, param, constant };

class Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

struct Instruction {
  Handler execute = nullptr;
  std::int32_t guard = -1;                  // a predicate's offset
  std::int32_t d = -1, d2 = -1;             // destinations
  std::int32_t a = -1, b = -1, c = -1, e = -1;
  std::int32_t list = -1;                   // start in Function::lists: the operands of a vector or matrix instruction
  std::uint32_t text = 0;                   // in Function::texts
  std::int64_t immediate = 0;               // added to an address; a branch's target; a mode
  std::uint8_t count = 0, mode = 0;         // length of a vector; a variant
  bool is_guard_negated = false, is_wide = false, is_negated = false;  // 64-bit address; negated predicate source
  Space space = Space::generic;
};

// A column that is filled when a warp starts.
struct Preset {
  enum Kind : std::uint8_t {
    tid_x, tid_y, tid_z, ntid_x, ntid_y, ntid_z, ctaid_x, ctaid_y, ctaid_z, nctaid_x, nctaid_y, nctaid_z, laneid, warpid, nwarpid,
    lanemask_eq, lanemask_lt, lanemask_le, lanemask_gt, lanemask_ge, dynamic_smem_size, total_smem_size,
    param_address, local_address, dynamic_shared, dynamic_shared32, constant32, constant64, constant_pred
  };
  Kind kind;
  std::int32_t offset;
  std::uint64_t value;
};

struct Parameter {
  std::size_t offset, bytes;
};

struct Function {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes = 0, register_bytes = 0, shared_bytes = 0, local_bytes = 0;
  unsigned max_threads = 1024;              // .maxntid: what __launch_bounds__ promised
  std::vector<Instruction> code;
  std::vector<std::int32_t> lists;
  std::vector<Preset> presets;
  std::vector<std::string> texts;
};

// The text of one PTX file, cut into functions; an entry is decoded when it is first asked for.
class Module {
 public:
  explicit Module(std::string text);
  ~Module();
  Module(const Module&) = delete;
  std::vector<std::string> entries() const;
  bool has(std::string_view entry) const;
  const Function& function(std::string_view entry);  // throws Error with the instruction's text
  std::byte* variable(std::string_view name) const;  // a .global or .const variable, or null

  struct Parts;

 private:
  std::unique_ptr<Parts> parts_;
};

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
enum class Order : std::uint8_t { forward, reverse, random };

// Runs every block of the grid; throws Error. `parameters` has Function::parameter_bytes.
void execute(const Function& function, Dim grid, Dim block, std::size_t dynamic_shared_bytes, const std::byte* parameters,
             Order order = Order::forward, int num_threads = 0);

}  // namespace refrain::emulator::ptx
