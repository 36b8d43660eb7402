#include <algorithm>
#include <utility>

#include "libhccl/api.h"

namespace hccl {

namespace {

struct Group {
  int depth = 0;
  std::vector<std::pair<void*, Asked>> calls;  // with their streams
  std::vector<std::function<void()>> ranks;
  Error failed;  // of the first call that was rejected
};
thread_local Group group;

// Of several errors, the first.
class Errors {
 public:
  template <typename Body>
  void collect(Body&& body) {
    try {
      body();
    } catch (Error& error) {
      std::lock_guard guard(mutex_);
      if (first_.code == hcclSuccess) first_ = std::move(error);
    }
  }
  void raise() const {
    if (first_.code != hcclSuccess) throw first_;
  }

 private:
  std::mutex mutex_;
  Error first_;
};

// Ranks of one process wait for each other.
void make_all(const std::vector<std::function<void()>>& ranks) {
  if (ranks.size() == 1) return ranks[0]();
  Errors errors;
  std::vector<std::thread> threads;
  for (const auto& make : ranks) threads.emplace_back([&] { errors.collect(make); });
  for (std::thread& thread : threads) thread.join();
  errors.raise();
}

void run_all(std::vector<std::pair<void*, Asked>>& calls) {
  std::vector<std::pair<void*, std::unique_ptr<Batch>>> batches;
  for (auto& [stream, asked] : calls) {
    auto is_it = [on = stream](const auto& batch) { return batch.first == on; };
    auto found = std::find_if(batches.begin(), batches.end(), is_it);
    if (found == batches.end()) {
      found = batches.insert(found, {stream, std::make_unique<Batch>()});
    }
    found->second->add(std::move(asked));
  }
  Errors errors;
  if (batches.size() == 1 && batches[0].first == nullptr) {
    start_queued(*batches[0].second);
    return batches[0].second->run();
  }
  for (auto& [stream, batch] : batches) {
    errors.collect([&, on = stream, &its = batch] {
      if (on != nullptr) return void(streams().find(on)->push(std::move(its)));
      start_queued(*its);
      its->start();
    });
  }
  for (auto& [stream, batch] : batches) {
    if (stream == nullptr) errors.collect([&its = batch] { its->wait(); });
  }
  errors.raise();
}

}  // namespace

void submit(Asked asked, void* stream) {
  StreamPtr on = stream == nullptr ? nullptr : streams().find(stream);
  if (group.depth > 0) {
    group.calls.emplace_back(stream, std::move(asked));
  } else if (on == nullptr) {
    start_queued(*asked.communicator);
    Call(std::move(asked)).run();
  } else {
    auto batch = std::make_unique<Batch>();
    batch->add(std::move(asked));
    on->push(std::move(batch));
  }
}

void make_ranks(std::function<void()> make) {
  group.depth > 0 ? group.ranks.push_back(std::move(make)) : make();
}

void note_in_group(const Error& error) {
  if (group.depth > 0 && group.failed.code == hcclSuccess) group.failed = error;
}

void require_no_group() {
  if (group.depth > 0) {
    throw Error{hcclInvalidUsage,
                "expected no open hcclGroupStart(): the call communicates at once; make it before "
                "or after the group"};
  }
}

}  // namespace hccl

using namespace hccl;

extern "C" {

hcclResult_t hcclGroupStart() {
  ++group.depth;
  return hcclSuccess;
}

hcclResult_t hcclGroupEnd() {
  return guarded("hcclGroupEnd", [] {
    if (group.depth == 0) throw Error{hcclInvalidUsage, "no hcclGroupStart() is open"};
    if (--group.depth > 0) return;
    auto [depth, calls, ranks, failed] = std::exchange(group, {});
    if (failed.code != hcclSuccess) {
      throw Error{failed.code, "none of its calls was started, because of " + failed.text};
    }
    if (!ranks.empty()) make_all(ranks);
    if (!calls.empty()) run_all(calls);
  });
}

}  // extern "C"
