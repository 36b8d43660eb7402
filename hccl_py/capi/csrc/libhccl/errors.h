// How a call fails: thrown inside the library, returned as a code at its border, with the text kept
// for hcclGetLastErrorMessage().
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
#include <hccl/hccl.h>
#pragma GCC visibility pop

namespace hccl {

struct Error {
  hcclResult_t code = hcclSuccess;
  std::string text;
};

[[noreturn]] inline void reject(std::string text) {
  throw Error{hcclInvalidArgument, std::move(text)};
}

// Keeps the error as this thread's last; returns its code.
hcclResult_t report(Error error);

// Runs the body of a function of the API: nothing is thrown across its border.
template <typename Body>
hcclResult_t guarded(const char* function, Body&& body) {
  try {
    body();
    return hcclSuccess;
  } catch (Error& error) {
    if (error.code == hcclSuccess) return hcclSuccess;
    return report({error.code, std::string(function) + ": " + error.text});
  } catch (const std::bad_alloc&) {
    return report({hcclOutOfMemory, std::string(function) + ": not enough memory"});
  } catch (const std::exception& error) {
    return report({hcclInternalError, std::string(function) + ": " + error.what()});
  }
}

}  // namespace hccl
