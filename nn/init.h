// Initial values of parameters. An element is a pure function of its key and its index in the tensor, so that values
// depend neither on threads nor on which part of a model is built. Nothing is allocated: tensors are filled in place.
#pragma once

#include <refrain/core/random.h>
#include <refrain/core/tensor.h>

#include <cstdint>

namespace refrain {

// How many values meet in one output (fan_in) and how many outputs one value reaches (fan_out), for weights laid out
// [out, in] or [out, in, height, width]. Throws InvalidArgument for fewer than two dims.
struct Fans {
  double in = 0, out = 0;
};
Fans fans_of(const Shape& weight);

// A distribution whose parameters may still depend on the weight's shape.
class Init {
 public:
  static Init constant(double value) { return {Kind::constant, value, 0}; }
  static Init zeros() { return constant(0); }
  static Init ones() { return constant(1); }
  // Uniform in [low, high), up to rounding to the dtype.
  static Init uniform(double low, double high) { return {Kind::uniform, low, high}; }
  static Init normal(double mean, double std) { return {Kind::normal, mean, std}; }
  // Normal with mean and std, conditioned on lying in [low, high] (by the inverse of the distribution function).
  static Init trunc_normal(double mean, double std, double low = -2, double high = 2) {
    Init init{Kind::trunc_normal, mean, std};
    init.low_ = low;
    init.high_ = high;
    return init;
  }
  // Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010:
  // variance gain² · 2 / (fan_in + fan_out).
  static Init xavier_uniform(double gain = 1) { return {Kind::xavier_uniform, gain, 0}; }
  static Init xavier_normal(double gain = 1) { return {Kind::xavier_normal, gain, 0}; }
  // He et al., "Delving deep into rectifiers", 2015: variance gain² / fan_in, gain = sqrt(2 / (1 + negative_slope²)).
  static Init kaiming_uniform(double negative_slope = 0) { return {Kind::kaiming_uniform, negative_slope, 0}; }
  static Init kaiming_normal(double negative_slope = 0) { return {Kind::kaiming_normal, negative_slope, 0}; }

  // Fills a contiguous floating tensor. Throws InvalidArgument for an impossible distribution (std < 0, low > high).
  void fill(const Tensor& t, const RandomKey& key) const;

 private:
  enum class Kind { constant, uniform, normal, trunc_normal, xavier_uniform, xavier_normal, kaiming_uniform, kaiming_normal };
  Init(Kind kind, double a, double b) : kind_(kind), a_(a), b_(b) {}
  Init resolved(const Shape& shape) const;  // with the fans worked in
  Kind kind_;
  double a_, b_, low_ = 0, high_ = 0;
};

// Inverse of the standard normal distribution function on (0, 1): Wichura, "Algorithm AS 241", 1988, about 1e-16.
double normal_quantile(double p);

}  // namespace refrain
