# Entrain. `make help` lists the targets.
BUILD ?= build
JOBS  ?= $(shell nproc)
CMAKE_FLAGS ?=
# The targets of `make tests`: tests, or units, which omits those of whole programs (tests/system), or some programs.
TESTS ?= tests

# Packages for a build, the tests and the demo; README.md explains each.
BUILD_TOOLS    = gcc g++ cmake pkg-config
BUILD_LIBS     = libzmq3-dev libmsgpack-c-dev/libmsgpack-dev libssl-dev libisal-dev libdnnl-dev zlib1g-dev libyaml-dev libjansson-dev libcurl4-openssl-dev libexpat1-dev
TEST_LIBS      = libcmocka-dev
DEMO_PACKAGES  = dataset-fashion-mnist gnuplot-nox

# ARCH=arm64: cross-compiled, with arm64's libraries beside this machine's (tools/root.sh makes a root that has them).
ifeq ($(ARCH),arm64)
BUILD          = build-arm64
BUILD_TOOLS    = gcc-aarch64-linux-gnu cmake pkg-config
TOOLCHAIN      = --toolchain $(CURDIR)/cmake/aarch64.cmake
of_arch        = $(addsuffix :arm64,$(subst /,:arm64/,$(1)))
else
of_arch        = $(1)
endif
BUILD_PACKAGES = $(BUILD_TOOLS) $(call of_arch,$(BUILD_LIBS))
TEST_PACKAGES  = $(call of_arch,$(TEST_LIBS))
PACKAGES = $(BUILD_PACKAGES) $(TEST_PACKAGES) $(DEMO_PACKAGES)

.PHONY: all tests cuda deps demo demo-resnet demo-strategies test check long isa soak asan tsan fuzz bench found install release wheel format format-check tidy lines clean help configure
.DEFAULT_GOAL := all

# $(call build,TARGETS)
build = cmake --build $(BUILD) -j $(JOBS) --target $(1) $$([ ! -f $(BUILD)/Makefile ] || echo -- --no-print-directory -s)

all: configure ## build the programs, plugins and libentrain into build/
	@$(call build,all)

tests: configure ## build all of that, the tests and benches, and the cuda device if NVIDIA's toolkit is found
	@tools/deps.sh --check-build $(TEST_PACKAGES)
	@$(call build,all $(TESTS))

cuda: configure ## build the cuda device
	@cmake $(BUILD) > $(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@$(call build,all cuda)

configure:
	@tools/configured_here.sh $(BUILD)
	@tools/deps.sh --check-build $(BUILD_PACKAGES)
	@[ -f $(BUILD)/CMakeCache.txt ] || cmake -S . -B $(BUILD) $(TOOLCHAIN) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@[ ! -f $(BUILD).log ] || sed -n 's/^-- \(no cpu device\)/\1/p' $(BUILD).log
	@rm -f $(BUILD).log

deps: ## install what is missing (prints the line first)
	@tools/deps.sh $(PACKAGES)

demo: deps ## the main job: check, then compare ring, ps-sync and ps-async on Fashion-MNIST (5 minutes)
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD)

demo-resnet: deps ## ring, ps-sync, ps-async and ssp on colour images: patches of photographs from PyPI (15 minutes on two cores)
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD) resnet

demo-strategies: deps ## all strategies on the mlp in virtual time, eight workers, each tuned by a sweep of five rates (15 minutes on two cores)
	@$(MAKE) --no-print-directory all
	@tools/demo.sh $(BUILD) strategies

test: deps ## build and run the tests (15 minutes on two cores)
	@$(MAKE) --no-print-directory tests
	@JOBS=$(JOBS) tools/test.sh $(BUILD) -LE 'soak|long' $(CTEST_FLAGS)

check: deps ## the unit tests and the checks of the tree, for use while writing code (2 minutes)
	@$(MAKE) --no-print-directory tests
	@JOBS=$(JOBS) tools/test.sh $(BUILD) -L 'unit|tool' -LE 'soak|long' $(CTEST_FLAGS)

long: deps ## tests that take minutes, as in CI: accuracies, PyTorch, a study, oneDNN's other kernels, the traced build
	@$(MAKE) --no-print-directory tests
	@JOBS=$(JOBS) tools/test.sh $(BUILD) -L long -LE soak $(CTEST_FLAGS)

soak: deps ## the longest tests: hundreds of kills, every phase of every strategy, known bugs reintroduced (an hour)
	@$(MAKE) --no-print-directory tests
	@JOBS=1 tools/test.sh $(BUILD) -L 'soak|long' $(CTEST_FLAGS)

isa: deps ## the tests of kernels, as on a CPU without AVX-512 and on one without AVX2
	@$(MAKE) --no-print-directory tests
	@for isa in AVX2 SSE41; do echo "DNNL_MAX_CPU_ISA=$$isa:"; DNNL_MAX_CPU_ISA=$$isa ctest --test-dir $(BUILD) --no-tests=error \
	    -j $(JOBS) -R '^(ops|models)_|^system_equal$$' -E '^ops_sweep|_avx2$$' -LE 'gpu|soak|long' --output-on-failure || exit 1; done

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory tests BUILD=build-asan CMAKE_FLAGS=--preset=asan
	@JOBS=$(JOBS) tools/test.sh build-asan -LE 'slow|tool|long' $(CTEST_FLAGS)

tsan: ## the tests under ThreadSanitizer
	@$(MAKE) --no-print-directory tests BUILD=build-tsan CMAKE_FLAGS=--preset=tsan
	@JOBS=$(JOBS) tools/test.sh build-tsan -LE 'slow|tool|long' $(CTEST_FLAGS)

fuzz: ## build the libFuzzer targets with clang and run each for FUZZ_SECONDS (60)
	@tools/fuzz.sh $${FUZZ_SECONDS:-60}

bench: configure ## measure everything and its peers and limits into bench/RESULTS.md (BENCH_FLAGS=--list lists the experiments)
	@command -v python3 >/dev/null || { echo "make bench needs python3: apt-get install python3-minimal"; exit 1; }
	@$(call build,all benches)
	@bench/run.py --build=$(BUILD) $(BENCH_FLAGS)

found: all ## run what papers say, in virtual time: docs/found.md (an hour; FOUND_FLAGS=--quick: a minute)
	@python3 -c 'import numpy' 2>/dev/null || { echo "make found needs numpy: apt-get install python3-numpy"; exit 1; }
	@found/found.py --build=$(BUILD) $(FOUND_FLAGS)

install: all ## install to PREFIX (/usr/local); with man pages if help2man is installed
	@tools/man.sh $(BUILD) || [ $$? = 77 ]
	@cmake --install $(BUILD) --prefix $${PREFIX:-/usr/local}

release: ## the tarball of this version, built twice and compared
	@tools/release.sh

wheel: ## the Python wheel, built in a bare Debian 11 and tried in bare Debians 11 to 13: build/wheel/*.whl
	@tools/wheel.sh

# clang-format 14, of Debian 12: other versions break lines differently.
sources = git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh'
format: ## clang-format the tree in place
	@$(sources) | xargs clang-format -i

format-check: ## check that `make format` would change nothing
	@$(sources) | xargs clang-format --dry-run -Werror

TIDY ?= $(shell git ls-files '*.c' | grep -v '^tests/')
tidy: configure ## clang-tidy over the tree, or TIDY=FILES; a function of more than 60 lines is an error
	@echo $(strip $(TIDY)) | xargs -P $(JOBS) -n 4 clang-tidy -p $(BUILD) --quiet

lines: ## the product's lines by folder, and their limits
	@tools/lines.sh

clean: ## remove build folders
	@rm -rf build build-asan build-tsan build-fuzz build-mutations

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
