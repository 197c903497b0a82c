// What was planned before, so that a search plans nothing twice. Shared by the process's threads.
#pragma once

#include <refrain/core/check.h>
#include <refrain/train/plan.h>
#include <refrain/train/planned_data.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace refrain {

// Everything that candidates and plans depend on: the configuration, and the data's sizes as they are now.
inline std::string plan_key(Config config, const PlanOptions& options) {
  const PlannedData data = find_planned_data(config, options.num_train, options.num_test);
  config.memory_limit = config.memory_budget = {};
  config.run_dir.clear();
  return concat(to_toml(config), data.train.input_shape, data.train.num_classes, ' ', data.train.size, ' ', data.test.size, ' ', options.world_size);
}

// A value for each key, made when it is not there; several threads may ask at a time.
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
    if (values_.size() >= kMost) values_.clear();
    return values_.emplace(key, std::move(value)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 1000;  // a search asks for some hundreds
  std::mutex mutex_;
  std::map<std::string, Value> values_;
};

}  // namespace refrain
