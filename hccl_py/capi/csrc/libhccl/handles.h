// Handles of the API: numbers that are never used twice, so that a wrong or an old one is an error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libhccl/errors.h"

namespace hccl {

template <typename Object>
class Handles {
 public:
  // `kind`: the lowest four bits of its handles, and `name` for messages.
  Handles(unsigned kind, const char* name) : kind_(kind), name_(name) {}

  void* add(std::shared_ptr<Object> object) {
    std::lock_guard guard(mutex_);
    uintptr_t number = ++last_ << 4 | kind_;
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<void*>(number);
  }
  std::shared_ptr<Object> find(const void* handle) const {
    std::lock_guard guard(mutex_);
    auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) reject_handle(handle);
    return found->second;
  }
  // Removes it; only one of several callers gets the object.
  std::shared_ptr<Object> take(const void* handle) {
    std::lock_guard guard(mutex_);
    auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) reject_handle(handle);
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  std::vector<std::shared_ptr<Object>> all() const {
    std::lock_guard guard(mutex_);
    std::vector<std::shared_ptr<Object>> found;
    for (const auto& [number, object] : objects_) found.push_back(object);
    return found;
  }

 private:
  [[noreturn]] void reject_handle(const void* handle) const {
    char text[32] = "NULL";
    if (handle != nullptr) std::snprintf(text, sizeof(text), "%p", handle);
    reject(std::string("expected a ") + name_ + ", got " + text +
           (handle ? ", which is none, or was destroyed" : ""));
  }

  const unsigned kind_;
  const char* const name_;
  mutable std::mutex mutex_;
  uintptr_t last_ = 1 << 12;  // Go's runtime stops programs whose pointers are below 4096
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace hccl
