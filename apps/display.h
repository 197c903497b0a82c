// What a person sees of a run: one live line on a terminal, a plain line every few seconds elsewhere.
#pragma once

#include <refrain/train/run.h>

#include <string>

namespace refrain::apps {

class Display {
 public:
  Display();
  void start(const Config& config, std::int64_t num_parameters);
  void step(const Progress& progress);
  void evaluation(std::int64_t step, double epoch, const Evaluation& evaluation);
  // A line of its own; a live line is put below it.
  void line(const std::string& text);
  // Ends a live line.
  void finish();

 private:
  // As many fields as fit.
  std::string progress_line(const Progress& progress, std::size_t columns) const;
  std::string bold(const std::string& text) const;

  bool is_terminal_, has_color_;
  bool is_live_line_open_ = false;
  double last_seconds_ = -1e9;
  double samples_factor_ = 1;  // tokens a window
  std::string unit_ = "images/s";
};

}  // namespace refrain::apps
