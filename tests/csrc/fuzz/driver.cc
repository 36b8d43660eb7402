// Runs a target where the compiler has no fuzzer: seeded random inputs, and mutations of a few of
// them. Blind to coverage; a short, repeatable round for every test run.
//
//   fuzz_tcp_lane [RUNS [SEED]]     or, to repeat one input:     fuzz_tcp_lane FILE
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

constexpr long default_runs = 20000;
constexpr size_t longest_input = 1024;
constexpr size_t num_kept = 64;

class Mutator {
 public:
  explicit Mutator(unsigned long seed) : random_(seed), kept_(num_kept) {}

  const Input& next() {
    Input& input = kept_[below(num_kept)];
    if (input.empty() || below(16) == 0) {
      input.resize(1 + below(longest_input));
      for (uint8_t& byte : input) byte = interesting();
      return input;
    }
    for (size_t i = 1 + below(8); i-- > 0;) change(input);
    return input;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  uint8_t interesting() {
    constexpr uint8_t bounds[] = {0, 1, 2, 4, 8, 0x7f, 0x80, 0xff};
    return below(3) == 0 ? bounds[below(std::size(bounds))] : static_cast<uint8_t>(random_());
  }
  void change(Input& input) {
    size_t at = below(input.size());
    auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(4)) {
      case 0: *place = interesting(); break;
      case 1: *place ^= static_cast<uint8_t>(1u << below(8)); break;
      case 2:
        if (input.size() < longest_input) input.insert(place, interesting());
        break;
      case 3:
        if (input.size() > 1) input.erase(place);
        break;
    }
  }

  std::mt19937_64 random_;
  std::vector<Input> kept_;
};

int repeat(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: neither a number of runs nor a file\n", path);
    return 2;
  }
  Input input{std::istreambuf_iterator<char>(file), {}};
  return LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  char* end = nullptr;
  long runs = argc > 1 ? std::strtol(argv[1], &end, 10) : default_runs;
  if (argc > 1 && *end != '\0') return repeat(argv[1]);
  unsigned long seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
  Mutator mutator(seed);
  for (long i = 0; i < runs; ++i) {
    const Input& input = mutator.next();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld inputs, seed %lu\n", runs, seed);
  return 0;
}
