// Compares an op in 16 bits with the same op in f64 on the same, rounded values, forward and backward, element by element
// against a derived bound. With u the rounding unit of the element's dtype (2^-11 for f16, 2^-8 for bf16, 2^-24 for f32):
//
//   |y - y64| <= u·|y64| + (1 + u)·E + s
//
// E is how far the value may be from y64 before it is rounded: what f32 arithmetic loses, and what comes from values that
// were rounded earlier (a saved output, say). The rest is the rounding: |round(F) - y64| <= |F - y64| + u·|F|. s is half the
// distance of subnormals: 2^-25 for f16, and 2^-126 for the others, whose subnormals kernels may flush to zero.
#pragma once

#include <refrain/core/tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace refrain::testing {

struct HalfOperand {
  Shape shape;
  double low = -1, high = 1;
  bool is_f32 = false;  // as a parameter of mixed precision is, beside 16-bit operands
};

struct OpValues {
  std::vector<double> y;
  std::vector<std::vector<double>> grads;  // of every operand
};

// What a bound may read.
struct HalfRun {
  double u = 0;                        // of the 16-bit type
  std::vector<std::vector<double>> x;  // the operands, rounded
  std::vector<double> g;               // grad_out, rounded
  OpValues exact;                      // in f64
  OpValues terms;                      // the same with every operand and grad_out made positive: for sums of products, the
                                       // sums of their terms' magnitudes
};

// E of every element of an output or a gradient.
using HalfBound = std::function<std::vector<double>(const HalfRun&)>;

struct HalfCase {
  std::string name;  // the op's, as precision_table() has it, and what is special after a colon
  std::vector<HalfOperand> operands;
  std::function<Tensor(const std::vector<Tensor>&)> op;
  HalfBound y;
  std::vector<HalfBound> grads;  // as many as there are operands
};

// Rounding unit of f32.
inline constexpr double kWide = 0x1p-24;
// n roundings in a row: (1 + 2^-24)^n - 1 <= n·2^-24 / (1 - n·2^-24) (Higham, "Accuracy and stability of numerical algorithms",
// 2002, lemma 3.1). A sum of n terms in any order is off by at most roundings(n - 1) times the sum of their magnitudes.
double roundings(double n);

// E = 0: values are moved, or chosen.
HalfBound exactly();
// E = roundings(n)·|y64|: n roundings, none of a difference.
HalfBound relative(double n);
// E = roundings(n)·M, with M the sum of the magnitudes of an element's terms: a sum of products with n roundings on the way.
HalfBound terms(double n);
// As terms(n), each term being rounded to 16 bits before the sum.
HalfBound terms_rounded(double n);
// A gradient that is proportional to the k-th power of a saved 16-bit output which itself is right to n roundings.
HalfBound of_saved_output(int k, double n);

// Runs the case in `half`. What the worst element of the output, and of each gradient, uses of its bound: above 1 it is
// broken, infinity for NaN.
std::vector<double> shares_of_bounds(const HalfCase& c, DType half);

}  // namespace refrain::testing
