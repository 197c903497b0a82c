#include "display.h"

#include <refrain/core/parallel.h>
#include <refrain/train/report.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace refrain::apps {

namespace {

constexpr double kLiveSeconds = 0.1, kPlainSeconds = 5;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[400];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

std::string duration(double seconds) {
  const long whole = std::lround(std::min(std::max(seconds, 0.0), 1e9));
  return whole >= 3600 ? format("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60) : format("%ld:%02ld", whole / 60, whole % 60);
}

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Display::Display() : is_terminal_(isatty(STDOUT_FILENO) == 1) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool is_dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  is_terminal_ = is_terminal_ && !is_dumb;
  has_color_ = is_terminal_ && (no_color == nullptr || *no_color == '\0');
}

std::string Display::bold(const std::string& text) const { return has_color_ ? "\x1b[1m" + text + "\x1b[0m" : text; }

void Display::start(const Config& config, std::int64_t num_parameters) {
  if (config.model == "gpt2") {
    samples_factor_ = double(config.context);
    unit_ = "tokens/s";
  }
  line(format("%s: %lld parameters, %s, batch %lld x %lld, %s, lr %g, checkpoint %s, %d threads", config.model.c_str(),
              static_cast<long long>(num_parameters), config.precision.c_str(), static_cast<long long>(config.batch),
              static_cast<long long>(config.accumulate), config.optimizer.c_str(), config.lr,
              config.checkpoint.c_str(), num_threads()));
  line("run directory " + config.run_dir);
}

std::string Display::progress_line(const Progress& p, std::size_t columns) const {
  struct Field {
    int rank;  // the highest goes first when the line is too narrow
    std::string text;
  };
  const auto whole = [](std::int64_t value) { return static_cast<long long>(value); };
  std::vector<Field> fields{
      {3, p.epochs > 0 ? format("epoch %.2f/%lld", p.epoch, whole(p.epochs)) : format("epoch %.2f", p.epoch)},
      {0, format("%5.1f %%", 100 * double(p.step) / double(p.total_steps))},
      {6, format("step %lld/%lld", whole(p.step), whole(p.total_steps))},
      {9, format("loss now %.4f", p.loss)},
      {1, format("loss %.4f", p.average_loss)},
      {4, format("acc %.1f %%", 100 * p.accuracy)},
      {11, format("lr %.3g", p.lr)},
      {10, format("grad %.3g", p.grad_norm)},
      {2, format("%.0f %s", p.samples_per_second * samples_factor_, unit_.c_str())},
      {8, format("data %.1f %%", 100 * p.data_wait_share)},
      {12, format("mem %s", bytes_text(p.live_bytes).c_str())},
      {5, format("peak %s", bytes_text(p.peak_bytes).c_str())},
      {7, format("replay %.1f %%", 100 * p.replayed_flops_share)},
      {13, p.loss_scale != 1 ? format("scale %g", p.loss_scale) : ""},
      {14, p.lost_updates_share > 0 ? format("lost %.1f %%", 100 * p.lost_updates_share) : ""},
      {5, p.skipped_steps > 0 ? format("skipped %lld", whole(p.skipped_steps)) : ""},
      {0, format("left %s", duration(p.seconds_left).c_str())},
  };
  std::erase_if(fields, [](const Field& field) { return field.text.empty(); });
  for (;;) {
    std::string text;
    for (const Field& field : fields) text += (text.empty() ? "" : "  ") + field.text;
    if (text.size() <= columns || fields.size() == 1) return text.substr(0, columns);
    fields.erase(std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
}

void Display::step(const Progress& progress) {
  const double seconds = now();
  if (seconds - last_seconds_ < (is_terminal_ ? kLiveSeconds : kPlainSeconds) && progress.step < progress.total_steps) return;
  last_seconds_ = seconds;
  if (!is_terminal_) return line(progress_line(progress, std::string::npos));
  std::printf("\r%s\x1b[K", progress_line(progress, terminal_columns() - 1).c_str());
  std::fflush(stdout);
  is_live_line_open_ = true;
}

void Display::evaluation(std::int64_t step, double epoch, const Evaluation& result) {
  line(format("epoch %.2f  step %lld  ", epoch, static_cast<long long>(step)) +
       bold(format("test accuracy %.2f %%  test loss %.4f", 100 * result.accuracy, result.loss)));
}

void Display::line(const std::string& text) {
  std::printf("%s%s\n", is_live_line_open_ ? "\r\x1b[K" : "", text.c_str());
  std::fflush(stdout);
  is_live_line_open_ = false;
}

void Display::finish() {
  if (is_live_line_open_) std::printf("\n");
  std::fflush(stdout);
  is_live_line_open_ = false;
}

}  // namespace refrain::apps
