// Runs the tests of a program: all, or the one that the command line names.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  for (const hccl::test::Test& test : hccl::test::tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
}
