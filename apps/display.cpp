#include "display.h"

#include <refrain/core/parallel.h>
#include <refrain/train/report.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
  line(format("%s: %lld parameters, batch %lld x %lld, %s, lr %g, checkpoint %s, %d threads", config.model.c_str(), static_cast<long long>(num_parameters),
              static_cast<long long>(config.batch), static_cast<long long>(config.accumulate), config.optimizer.c_str(), config.lr,
              config.checkpoint.c_str(), num_threads()));
  line("run directory " + config.run_dir);
}

std::string Display::progress_line(const Progress& p) const {
  std::string text = p.epochs > 0 ? format("epoch %.2f/%lld", p.epoch, static_cast<long long>(p.epochs)) : format("epoch %.2f", p.epoch);
  text += format("  %5.1f %%  step %lld/%lld", 100 * double(p.step) / double(p.total_steps), static_cast<long long>(p.step),
                 static_cast<long long>(p.total_steps));
  text += format("  loss %.4f (avg %.4f)  acc %.1f %%  lr %.3g  grad %.3g", p.loss, p.average_loss, 100 * p.accuracy, p.lr, p.grad_norm);
  text += format("  %.0f %s  data %.1f %%  mem %s, peak %s  replay %.1f %%  left %s", p.samples_per_second * samples_factor_, unit_.c_str(),
                 100 * p.data_wait_share, bytes_text(p.live_bytes).c_str(), bytes_text(p.peak_bytes).c_str(), 100 * p.replayed_flops_share,
                 duration(p.seconds_left).c_str());
  return text;
}

void Display::step(const Progress& progress) {
  const double seconds = now();
  if (seconds - last_seconds_ < (is_terminal_ ? kLiveSeconds : kPlainSeconds) && progress.step < progress.total_steps) return;
  last_seconds_ = seconds;
  std::string text = progress_line(progress);
  if (!is_terminal_) return line(text);
  text.resize(std::min(text.size(), terminal_columns() - 1));
  std::printf("\r%s\x1b[K", text.c_str());
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
