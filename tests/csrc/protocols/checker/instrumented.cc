// What compiled code calls: ThreadSanitizer's functions, allocations, and the system calls of the
// protocols, replaced by the linker (--wrap).
#include <poll.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "run.h"

namespace hccl::check {

namespace {

// The memory of executions: never freed, and taken again at the same addresses by the next one.
constexpr size_t arena_bytes = size_t{32} << 20;
std::byte* const arena = static_cast<std::byte*>(std::malloc(arena_bytes));
size_t arena_used = 0;

bool is_step(const volatile void* address) {
  return run.on_fiber && region_of(reinterpret_cast<uintptr_t>(address)) != nullptr;
}

Access access_to(const volatile void* address, int num_bytes, Kind kind, int order, void* caller) {
  Access access;
  access.kind = kind;
  access.address = reinterpret_cast<uintptr_t>(address);
  access.num_bytes = num_bytes;
  access.site = site_at(caller, order, kind != Kind::store, kind != Kind::load);
  int weakened = run.sites[static_cast<size_t>(access.site)].weakened;
  access.order = weakened >= 0 ? weakened : order;
  return access;
}

template <class T>
T load(const volatile T* address, int order, void* caller) {
  if (!is_step(address)) return __atomic_load_n(address, __ATOMIC_SEQ_CST);
  return static_cast<T>(step(access_to(address, sizeof(T), Kind::load, order, caller)));
}

template <class T>
void store(volatile T* address, T value, int order, void* caller) {
  if (!is_step(address)) {
    note_access(reinterpret_cast<uintptr_t>(address), sizeof(T), true);
    return __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
  }
  Access access = access_to(address, sizeof(T), Kind::store, order, caller);
  access.value = value;
  step(std::move(access));
}

template <class T>
T update(volatile T* address, T value, T expected, int how, int order, void* caller) {
  Access access;
  if (!is_step(address)) {
    T before = *address;
    note_access(reinterpret_cast<uintptr_t>(address), sizeof(T), true);
    access.value = value;
    access.update = how;
    if (how != '=' || before == expected) *address = static_cast<T>(updated(access, before));
    return before;
  }
  access = access_to(address, sizeof(T), Kind::update, order, caller);
  access.value = value;
  access.expected = expected;
  access.update = how;
  return static_cast<T>(step(std::move(access)));
}

// Of a modelled descriptor: the number of its event, or -1.
int event_of(int descriptor) {
  int event = descriptor - first_event;
  return event >= 0 && event < static_cast<int>(run.events.size()) ? event : -1;
}

uint64_t use_event(int event, Kind kind, int how, uint64_t value) {
  if (!run.on_fiber) {
    uint64_t& count = run.events[static_cast<size_t>(event)].count;
    uint64_t before = count;
    count = how == '+' ? count + value : value;
    return before;
  }
  Access access = simple(kind, value);
  access.address = static_cast<uintptr_t>(event);
  access.order = acq_rel;
  access.update = how;
  return step(std::move(access));
}

int new_event_of(uint64_t count) {
  run.events.push_back({count});
  return static_cast<int>(run.events.size()) - 1;
}

Lock& lock_at(const void* address, uint64_t count) {
  Outside outside;
  auto at = reinterpret_cast<uintptr_t>(address);
  for (Lock& lock : run.locks) {
    if (lock.address == at) return lock;
  }
  run.locks.push_back({at, new_event_of(count), {}});
  return run.locks.back();
}

// Tries before it waits: a wait alone would not show the search that another order is possible.
void take_event(int event) {
  while (use_event(event, Kind::update, 'x', 0) == 0) use_event(event, Kind::await, 0, 0);
}

}  // namespace

void begin_arena() { arena_used = 0; }

}  // namespace hccl::check

using namespace hccl::check;

// ---- the allocations of an execution

void* operator new(size_t num_bytes) {
  if (!in_execution) {
    if (void* memory = std::malloc(num_bytes)) return memory;
    throw std::bad_alloc();
  }
  arena_used = (arena_used + 63) / 64 * 64;
  if (arena_used + num_bytes > arena_bytes) std::abort();
  void* memory = arena + arena_used;
  arena_used += num_bytes;
  return memory;
}
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  if (in_execution && static_cast<size_t>(alignment) <= 64) return operator new(num_bytes);
  if (in_execution) std::abort();
  return std::aligned_alloc(static_cast<size_t>(alignment), num_bytes);
}
void operator delete(void* memory) noexcept {
  auto* at = static_cast<std::byte*>(memory);
  if (at < arena || at >= arena + arena_bytes) std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { operator delete(memory); }

// ---- what instrumented code calls

#define CALLER __builtin_return_address(0)
#define ADDRESS(pointer) reinterpret_cast<uintptr_t>(pointer)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t size) { note_access(ADDRESS(at), size, false); }
void __tsan_write_range(void* at, size_t size) { note_access(ADDRESS(at), size, true); }

#define PLAIN(size)                                                              \
  void __tsan_read##size(void* at) { note_access(ADDRESS(at), size, false); }    \
  void __tsan_write##size(void* at) { note_access(ADDRESS(at), size, true); }    \
  void __tsan_unaligned_read##size(void* at) { __tsan_read##size(at); }          \
  void __tsan_unaligned_write##size(void* at) { __tsan_write##size(at); }        \
  void __tsan_volatile_read##size(void* at) { __tsan_read##size(at); }           \
  void __tsan_volatile_write##size(void* at) { __tsan_write##size(at); }         \
  void __tsan_unaligned_volatile_read##size(void* at) { __tsan_read##size(at); } \
  void __tsan_unaligned_volatile_write##size(void* at) { __tsan_write##size(at); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define UPDATE(bits, name, how)                                                                  \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* at, uint##bits##_t value, \
                                              int order) {                                       \
    return update<uint##bits##_t>(at, value, 0, how, order, CALLER);                             \
  }
#define ATOMIC(bits)                                                                               \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* at, int order) {        \
    return load(at, order, CALLER);                                                                \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* at, uint##bits##_t value, int order) { \
    store(at, value, order, CALLER);                                                               \
  }                                                                                                \
  UPDATE(bits, exchange, 'x')                                                                      \
  UPDATE(bits, fetch_add, '+')                                                                     \
  UPDATE(bits, fetch_sub, '-')                                                                     \
  UPDATE(bits, fetch_and, '&')                                                                     \
  UPDATE(bits, fetch_or, '|')                                                                      \
  UPDATE(bits, fetch_xor, '^')                                                                     \
  uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                       \
      volatile uint##bits##_t* at, uint##bits##_t expected, uint##bits##_t value, int order,       \
      int) {                                                                                       \
    return update(at, value, expected, '=', order, CALLER);                                        \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* at,                   \
                                                    uint##bits##_t* expected,                      \
                                                    uint##bits##_t value, int order, int) {        \
    uint##bits##_t before = update(at, value, *expected, '=', order, CALLER);                      \
    return before == std::exchange(*expected, before);                                             \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* at,                     \
                                                  uint##bits##_t* expected, uint##bits##_t value,  \
                                                  int order, int failed) {                         \
    return __tsan_atomic##bits##_compare_exchange_strong(at, expected, value, order, failed);      \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
  if (!run.on_fiber) return;
  Access access = simple(Kind::fence);
  access.site = site_at(CALLER, order, false, false);
  int weakened = run.sites[static_cast<size_t>(access.site)].weakened;
  access.order = weakened >= 0 ? weakened : order;
  step(std::move(access));
}
void __tsan_atomic_signal_fence(int) {}

// ---- what the linker sends here (--wrap)

void* __real_memcpy(void*, const void*, size_t);
void* __real_memmove(void*, const void*, size_t);
void* __real_memset(void*, int, size_t);
ssize_t __real_write(int, const void*, size_t);
ssize_t __real_read(int, void*, size_t);
int __real_poll(pollfd*, nfds_t, int);
int __real_close(int);

void* __wrap_memcpy(void* to, const void* from, size_t size) {
  note_access(ADDRESS(from), size, false);
  note_access(ADDRESS(to), size, true);
  return __real_memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  note_access(ADDRESS(from), size, false);
  note_access(ADDRESS(to), size, true);
  return __real_memmove(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  note_access(ADDRESS(to), size, true);
  return __real_memset(to, value, size);
}

ssize_t __wrap_write(int descriptor, const void* from, size_t size) {
  int event = event_of(descriptor);
  if (event < 0) return __real_write(descriptor, from, size);
  use_event(event, Kind::update, '+', *static_cast<const uint64_t*>(from));
  return static_cast<ssize_t>(size);
}
ssize_t __wrap_read(int descriptor, void* to, size_t size) {
  int event = event_of(descriptor);
  if (event < 0) return __real_read(descriptor, to, size);
  *static_cast<uint64_t*>(to) = use_event(event, Kind::update, 'x', 0);
  return static_cast<ssize_t>(size);
}
int __wrap_poll(pollfd* watched, nfds_t count, int timeout_ms) {
  int event = count == 1 ? event_of(watched->fd) : -1;
  if (event < 0) return __real_poll(watched, count, timeout_ms);
  use_event(event, Kind::await, 0, 0);
  watched->revents = POLLIN;
  return 1;
}

int __real_pthread_mutex_lock(pthread_mutex_t*);
int __real_pthread_mutex_unlock(pthread_mutex_t*);

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (!is_step(mutex)) return __real_pthread_mutex_lock(mutex);
  take_event(lock_at(mutex, 1).event);
  return 0;
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (!is_step(mutex)) return __real_pthread_mutex_unlock(mutex);
  use_event(lock_at(mutex, 1).event, Kind::update, '+', 1);
  return 0;
}
// No wait ends by its timeout. The step on the event of the condition tells which notifications
// come before it.
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t,
                                  const timespec*) {
  Lock& lock = lock_at(condition, 0);
  use_event(lock.event, Kind::update, '+', 0);
  int mine;
  {
    Outside outside;
    lock.waiters.push_back(mine = new_event_of(0));
  }
  __wrap_pthread_mutex_unlock(mutex);
  take_event(mine);
  return __wrap_pthread_mutex_lock(mutex);
}
// condition_variable::notify_all()
void __wrap__ZNSt18condition_variable10notify_allEv(void* condition) {
  Lock& lock = lock_at(condition, 0);
  use_event(lock.event, Kind::update, '+', 0);
  for (int waiter : std::exchange(lock.waiters, {})) use_event(waiter, Kind::update, '+', 1);
}

int __wrap_close(int descriptor) {
  return descriptor >= first_event ? 0 : __real_close(descriptor);
}

ssize_t __wrap_process_vm_readv(pid_t, const iovec* mine, unsigned long, const iovec* theirs,
                                unsigned long, unsigned long) {
  note_access(ADDRESS(theirs->iov_base), mine->iov_len, false);
  note_access(ADDRESS(mine->iov_base), mine->iov_len, true, true);
  __real_memcpy(mine->iov_base, theirs->iov_base, mine->iov_len);
  return static_cast<ssize_t>(mine->iov_len);
}
ssize_t __wrap_process_vm_writev(pid_t, const iovec* mine, unsigned long, const iovec* theirs,
                                 unsigned long, unsigned long) {
  note_access(ADDRESS(mine->iov_base), mine->iov_len, false);
  note_access(ADDRESS(theirs->iov_base), mine->iov_len, true, true);
  __real_memcpy(theirs->iov_base, mine->iov_base, mine->iov_len);
  return static_cast<ssize_t>(mine->iov_len);
}
}
