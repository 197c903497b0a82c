// Elementwise kernels on CUDA against the CPU's. Same formulas, so the same bits; only log, sin, cos and pow are the device's
// own.
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/tests/cuda/layouts.h>

#include <functional>

using namespace refrain;

namespace {

constexpr UnaryOp kUnaryOps[] = {UnaryOp::neg,  UnaryOp::abs,      UnaryOp::exp,        UnaryOp::log,
                                 UnaryOp::sqrt, UnaryOp::rsqrt,    UnaryOp::reciprocal, UnaryOp::square,
                                 UnaryOp::sin,  UnaryOp::cos,      UnaryOp::tanh,       UnaryOp::sigmoid,
                                 UnaryOp::relu, UnaryOp::gelu_erf, UnaryOp::gelu_tanh,  UnaryOp::silu};
constexpr ScalarOp kScalarOps[] = {ScalarOp::add,  ScalarOp::mul, ScalarOp::div,     ScalarOp::rsub,
                                   ScalarOp::rdiv, ScalarOp::pow, ScalarOp::maximum, ScalarOp::minimum};
constexpr BinaryOp kBinaryOps[] = {BinaryOp::add, BinaryOp::sub,     BinaryOp::mul,
                                   BinaryOp::div, BinaryOp::maximum, BinaryOp::minimum};
constexpr CompareOp kCompareOps[] = {CompareOp::equal,      CompareOp::not_equal, CompareOp::less,
                                     CompareOp::less_equal, CompareOp::greater,   CompareOp::greater_equal};
const Shape kShapes[] = {{}, {0}, {33}, {1000}, {3, 5, 7}, {2, 40}};

bool is_the_devices_own(UnaryOp op) { return op == UnaryOp::log || op == UnaryOp::sin || op == UnaryOp::cos; }

// Two libraries, each right to 4 units in the last place of values up to 1 or of the result, and one rounding of storage that
// may fall to either side.
void check_close(const Tensor& got, const Tensor& expected) {
  const double wide = got.dtype() == DType::f64 ? 0x1p-52 : 0x1p-23, storage = 2 * roundoff_of(got.dtype());
  const auto bound = [&](std::size_t, double e) {
    return (8 * wide + storage) * std::max(1.0, std::abs(e)) * (std::isfinite(e) ? 1 : 0);
  };
  CHECK(num_outside(on_cpu(got), expected.to_vector<double>(), bound) == 0);
}

void check_same(const Tensor& got, const Tensor& expected) { CHECK(num_different_when_flushed(on_cpu(got), expected) == 0); }

// The same for functions with products on the way that the CPU flushes to 0: what is left of them is below 2^-100, and may be
// no more than the sign of a 0.
bool flushes_parts(UnaryOp op) {
  return op == UnaryOp::gelu_erf || op == UnaryOp::gelu_tanh || op == UnaryOp::silu || op == UnaryOp::rsqrt ||
         op == UnaryOp::reciprocal;
}
void check_same_but_small(const Tensor& got, const Tensor& expected) {
  CHECK(num_outside(on_cpu(got), expected.to_vector<double>(), [](std::size_t, double) { return 0x1p-100; }) == 0);
}

// Ordinary values and special ones; no subnormal ones, which the CPU reads as 0.
Tensor values_of(const Shape& shape, DType dtype, std::uint64_t seed, double low = -6, double high = 6) {
  std::vector<double> values = random_values(numel_of(shape), seed, low, high);
  const double special[] = {0.0,   -0.0, HUGE_VAL, -HUGE_VAL, std::nan(""), 88.0, -88.0, -104.0,
                            200.0, 1e-6, -1e-6,    1,         -1,           3e4,  -3e4};
  for (std::size_t i = 0; i + 20 < values.size() && i < std::size(special); ++i) values[i + 3] = special[i];
  return tensor_of(values, shape, dtype);
}

// The sign of a NaN is no value either.
Tensor without_subnormals(const Tensor& t) {
  std::vector<double> values = t.to_vector<double>();
  for (double& v : values) v = std::isnan(v) ? std::nan("") : std::abs(v) < 0x1p-126 ? std::copysign(0.0, v) : v;
  return tensor_of(values, t.shape(), t.dtype());
}

Tensor expected_of(const std::function<void(const Tensor&)>& run, const Shape& shape, DType dtype) {
  const Tensor out = full(shape, 1, dtype);
  run(out);
  return out;
}

}  // namespace

TEST_CASE("cuda unary: all values of the 16-bit types have the CPU's bits") {
  for (DType dtype : kHalves) {
    const Tensor x = without_subnormals(all_values(dtype)), device_x = on_cuda(x);
    for (UnaryOp op : kUnaryOps) {
      INFO(name_of(op) << " " << dtype);
      const Tensor expected =
          expected_of([&](const Tensor& out) { launch(Unary{.op = op, .x = x, .out = out}); }, x.shape(), dtype);
      const Tensor out = poisoned(x.shape(), dtype, cuda_device());
      launch(Unary{.op = op, .x = device_x, .out = out});
      is_the_devices_own(op) ? check_close(out, expected)
      : flushes_parts(op)    ? check_same_but_small(out, expected)
                             : check_same(out, expected);
    }
  }
}

TEST_CASE("cuda unary: shapes, layouts, dtypes and in place") {
  for (UnaryOp op : kUnaryOps) {
    for (DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = values_of(shape, dtype, 7);
        const Tensor expected =
            expected_of([&](const Tensor& out) { launch(Unary{.op = op, .x = x, .out = out}); }, shape, dtype);
        const auto check = [&](const Tensor& got) {
          is_the_devices_own(op) ? check_close(got, expected) : check_same(got, expected);
        };
        for (const auto& [name, device_x] : cuda_layouts(x)) {
          INFO(name_of(op) << " " << dtype << " " << shape << " " << name);
          const CudaGuarded out(shape, dtype, name == "misaligned");
          launch(Unary{.op = op, .x = device_x, .out = out.tensor});
          check(out.tensor);
          CHECK(out.is_intact());
          launch(Unary{.op = op, .x = device_x, .out = device_x});
          check(device_x);
        }
      }
    }
  }
}

TEST_CASE("cuda unary backward: all values of the 16-bit types, shapes and layouts") {
  for (UnaryOp op : kUnaryOps) {
    if (op == UnaryOp::neg) continue;
    const auto check = [&](const Tensor& g, const Tensor& v, const Tensor& device_g, const Tensor& device_v) {
      const Tensor expected =
          expected_of([&](const Tensor& out) { launch(UnaryBackward{.op = op, .grad_out = g, .value = v, .out = out}); },
                      g.shape(), g.dtype());
      const CudaGuarded out(g.shape(), g.dtype());
      launch(UnaryBackward{.op = op, .grad_out = device_g, .value = device_v, .out = out.tensor});
      const bool is_own = op == UnaryOp::sin || op == UnaryOp::cos;
      is_own              ? check_close(out.tensor, expected)
      : flushes_parts(op) ? check_same_but_small(out.tensor, expected)
                          : check_same(out.tensor, expected);
      CHECK(out.is_intact());
    };
    for (DType dtype : kHalves) {
      INFO(name_of(op) << " " << dtype);
      const Tensor v = without_subnormals(all_values(dtype)), g = random_tensor(v.shape(), dtype, 3, -2, 2);
      check(g, v, on_cuda(g), on_cuda(v));
    }
    for (DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor g = random_tensor(shape, dtype, 4, -2, 2), v = values_of(shape, dtype, 5);
        const auto gs = cuda_layouts(g), vs = cuda_layouts(v);
        for (std::size_t i = 0; i < gs.size(); ++i) {
          INFO(name_of(op) << " " << dtype << " " << shape << " " << gs[i].first);
          check(g, v, gs[i].second, vs[(i + shape.size()) % vs.size()].second);
        }
      }
    }
  }
}

TEST_CASE("cuda scalar and its backward: every op, dtype and layout") {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      const Tensor x = values_of(shape, dtype, 9), g = random_tensor(shape, dtype, 10, -2, 2);
      for (double s : {0.1, 2.0, 1.0, -3.0}) {
        for (ScalarOp op : kScalarOps) {
          const bool is_own = op == ScalarOp::pow && s != 2 && s != 1;
          const Tensor expected =
              expected_of([&](const Tensor& out) { launch(Scalar{.op = op, .x = x, .scalar = s, .out = out}); }, shape, dtype);
          for (const auto& [name, device_x] : cuda_layouts(x)) {
            INFO(name_of(op) << " " << dtype << " " << shape << " " << s << " " << name);
            const Tensor out = poisoned(shape, dtype, cuda_device());
            launch(Scalar{.op = op, .x = device_x, .scalar = s, .out = out});
            is_own ? check_close(out, expected) : check_same(out, expected);
          }
          if (op != ScalarOp::rdiv && op != ScalarOp::pow) continue;
          INFO(name_of(op) << " backward " << dtype << " " << shape << " " << s);
          const Tensor back = expected_of(
              [&](const Tensor& out) { launch(ScalarBackward{.op = op, .grad_out = g, .x = x, .scalar = s, .out = out}); }, shape,
              dtype);
          const Tensor out = poisoned(shape, dtype, cuda_device());
          launch(ScalarBackward{.op = op, .grad_out = on_cuda(g), .x = on_cuda(x), .scalar = s, .out = out});
          op == ScalarOp::pow&& s != 2 && s != 3 ? check_close(out, back) : check_same(out, back);
        }
      }
    }
  }
}

TEST_CASE("cuda binary: broadcasts and mixed dtypes have the CPU's bits") {
  struct Operands {
    Shape a, b, out;
  };
  const Operands cases[] = {{{33}, {33}, {33}},         {{0, 3}, {3}, {0, 3}},      {{7, 40}, {40}, {7, 40}},
                            {{7, 40}, {7, 1}, {7, 40}}, {{1, 33}, {5, 1}, {5, 33}}, {{3, 5, 16}, {5, 1}, {3, 5, 16}},
                            {{}, {2, 17}, {2, 17}},     {{1000}, {}, {1000}}};
  for (DType half : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const bool is_mixed = is_16_bit(half);
    for (int mask = 0; mask < (is_mixed ? 8 : 1); ++mask) {
      const auto dtype_of_bit = [&](int bit) { return mask >> bit & 1 ? DType::f32 : half; };
      const DType da = dtype_of_bit(0), db = dtype_of_bit(1), dout = dtype_of_bit(2);
      for (const Operands& c : cases) {
        const Tensor a = values_of(c.a, da, 11), b = values_of(c.b, db, 12), g = random_tensor(c.out, dout, 13);
        const auto as_layouts = cuda_layouts(a), bs_layouts = cuda_layouts(b);
        for (BinaryOp op : kBinaryOps) {
          const Tensor expected =
              expected_of([&](const Tensor& out) { launch(Binary{.op = op, .a = a, .b = b, .out = out}); }, c.out, dout);
          for (std::size_t i = 0; i < as_layouts.size(); ++i) {
            INFO(name_of(op) << " " << da << " " << c.a << " " << as_layouts[i].first << ", " << db << " " << c.b << " to "
                             << dout);
            const CudaGuarded out(c.out, dout);
            launch(Binary{.op = op, .a = as_layouts[i].second, .b = bs_layouts[i % bs_layouts.size()].second, .out = out.tensor});
            check_same(out.tensor, expected);
            CHECK(out.is_intact());
          }
        }
        INFO("div_backward " << da << " " << db << " " << dout << " " << c.out);
        const Tensor back =
            expected_of([&](const Tensor& out) { launch(DivBackward{.grad_out = g, .a = a, .b = b, .out = out}); }, c.out, dout);
        const Tensor out = poisoned(c.out, dout, cuda_device());
        launch(DivBackward{.grad_out = on_cuda(g), .a = on_cuda(a), .b = on_cuda(b), .out = out});
        check_same(out, back);
      }
    }
  }
}

TEST_CASE("cuda binary: in place, and into rows that are apart") {
  for (DType dtype : kFloats) {
    const Tensor a = random_tensor({9, 33}, dtype, 1), b = random_tensor({9, 33}, dtype, 2);
    const Tensor expected = expected_of(
        [&](const Tensor& out) { launch(Binary{.op = BinaryOp::add, .a = a, .b = b, .out = out}); }, a.shape(), dtype);
    for (const auto& [name, device_a] : cuda_layouts(a)) {
      INFO(dtype << " " << name);
      launch(Binary{.op = BinaryOp::add, .a = device_a, .b = on_cuda(b), .out = device_a});
      check_same(device_a, expected);
    }
  }
}

TEST_CASE("cuda compare: every op and dtype, NaN too") {
  for (DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{33}, Shape{1000}, Shape{5, 48}}) {
      const auto make = [&](std::uint64_t seed) {
        std::vector<double> values = random_values(numel_of(shape), seed, 0, 3);
        for (double& v : values) v = std::floor(v);
        if (is_floating(dtype) && values.size() > 9) values[4 + seed] = std::nan("");
        return as(tensor_of(values, shape, DType::f64), dtype);
      };
      const Tensor a = make(1), b = make(2);
      const auto as_layouts = cuda_layouts(a), bs_layouts = cuda_layouts(b);
      for (CompareOp op : kCompareOps) {
        const Tensor expected =
            expected_of([&](const Tensor& out) { launch(Compare{.op = op, .a = a, .b = b, .out = out}); }, shape, DType::boolean);
        for (std::size_t i = 0; i < as_layouts.size(); ++i) {
          INFO(name_of(op) << " " << dtype << " " << shape << " " << as_layouts[i].first);
          const CudaGuarded out(shape, DType::boolean, std::int64_t(i % 2));
          launch(Compare{.op = op, .a = as_layouts[i].second, .b = bs_layouts[i == 1 ? 1 : 0].second, .out = out.tensor});
          CHECK(same_bits(on_cpu(out.tensor), expected));
          CHECK(out.is_intact());
        }
      }
    }
  }
}

TEST_CASE("cuda where: every dtype, mixed operands and broadcasts") {
  const auto check = [](const Tensor& condition, const Tensor& a, const Tensor& b, const Shape& shape, DType dtype) {
    INFO(a.dtype() << " " << a.shape() << " " << b.dtype() << " " << b.shape() << " " << shape);
    const Tensor expected =
        expected_of([&](const Tensor& out) { launch(Where{.condition = condition, .a = a, .b = b, .out = out}); }, shape, dtype);
    const auto cs = cuda_layouts(condition), as_layouts = cuda_layouts(a), bs_layouts = cuda_layouts(b);
    for (std::size_t i = 0; i < as_layouts.size(); ++i) {
      const CudaGuarded out(shape, dtype);
      launch(
          Where{.condition = cs[i % cs.size()].second, .a = as_layouts[i].second, .b = bs_layouts[0].second, .out = out.tensor});
      CHECK(num_different(on_cpu(out.tensor), expected) == 0);
      CHECK(out.is_intact());
    }
  };
  for (const Shape& shape : {Shape{}, Shape{0, 2}, Shape{33}, Shape{6, 48}, Shape{3, 5, 7}}) {
    std::vector<double> flags = random_values(numel_of(shape), 3);
    for (double& v : flags) v = v > 0;
    const Tensor condition = as(tensor_of(flags, shape, DType::f64), DType::boolean);
    for (DType dtype : kAllDTypes) {
      const Tensor a = as(random_tensor(shape, DType::f64, 1, 0, 99), dtype),
                   b = as(random_tensor(shape, DType::f64, 2, 0, 99), dtype);
      check(condition, a, b, shape, dtype);
      check(condition, a, as(full({}, 5, DType::f64), dtype), shape, dtype);
    }
    for (DType half : kHalves) {
      const Tensor narrow = random_tensor(shape, half, 4), wide = random_tensor(shape, DType::f32, 5);
      check(condition, narrow, wide, shape, DType::f32);
      check(condition, wide, narrow, shape, DType::f32);
    }
  }
}
