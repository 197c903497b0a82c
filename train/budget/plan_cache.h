// What was planned once is known for as long as the process lives.
#pragma once

#include <refrain/core/check.h>
#include <refrain/train/plan.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace refrain {

// The configuration as far as candidates and plans depend on it.
inline std::string plan_key(Config config, const PlanOptions& options) {
  config.memory_limit = config.memory_budget = {};
  config.run_dir.clear();
  return concat(to_toml(config), options.num_train, ' ', options.num_test);
}

// A value for each key, made once; several threads may ask at a time.
template <class Value>
class PlanCache {
 public:
  template <class Make>
  Value get(const std::string& key, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
    }
    Value value = make();
    const std::lock_guard lock(mutex_);
    return values_.emplace(key, std::move(value)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Value> values_;
};

}  // namespace refrain
