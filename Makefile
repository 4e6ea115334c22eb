# SPDX-License-Identifier: MIT
# Front door for GNU make: every target is one command line of cmake, ctest or a script in tools/. Lists itself: make help
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SECONDS ?= 300
T ?= problem_text
BUILD = build/release
export JOBS

.DEFAULT_GOAL := help
.PHONY: help deps build demo sim quick check check-full check-sim check-sim-full bench-sim asan ubsan tsan fuzz cov lint tidy abi-check ptxas-check check-oldcpu format doc \
        python python-gpu wheel nvcc gpu-check first-contact gpu-sanitize figures install uninstall clean

help: ## this list
	@echo 'libattn: make TARGET [JOBS=n]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || grep -E '^[a-z-]+:.*##' Makefile

deps: ## install what the build needs (Debian, as root), or print the line that does
	@tools/install_deps.sh build

build: deps ## release build in build/release
	@tools/build.sh release
	@echo "built: $(BUILD)/attn $(BUILD)/libattn.so $(BUILD)/libattn.a"

# Where nothing is built yet, only the command is built, for the CPU: the demo needs no more.
demo: PRESET = $(if $(wildcard $(BUILD)/build.ninja),release,cpu)
demo: deps ## attention of a real language model, checked against the model's own numbers, and a heat map
	@tools/build.sh $(PRESET) -- attn
	@build/$(PRESET)/attn demo --out build/demo

sim: PRESET = $(if $(wildcard $(BUILD)/build.ninja),release,sim)
sim: deps ## the PTX simulator and attn-sim, which runs CUDA programs without a GPU (docs/sim.md)
	@tools/build.sh $(PRESET) -- attn_sim
	@echo "built: build/$(PRESET)/attn-sim"

quick: ## inner loop: the command, unit tests, some problems of every CPU kernel, lint (under a minute after a small change)
	@tools/install_deps.sh check
	@tools/check.sh quick

check: ## everything a change must pass: build, tests, every kernel against the reference, lint
	@tools/install_deps.sh check
	@tools/check.sh check

check-full: ## more problems and seeds, sanitizers, older processors, coverage (an hour or more)
	@tools/install_deps.sh full
	@tools/check.sh full

check-sim: ## every GPU kernel in the PTX simulator, small problems, two of three policies each (no GPU; KERNEL='*' REPEAT=3)
	@tools/install_deps.sh check
	@tools/check.sh sim

check-sim-full: build ## 200 random problems per operator on the sm_80 kernels: eager, late and five seeds of random (hours; SIM_FLAGS='OPS=dist PER_OP=20')
	@env POLICIES='eager late random' SEEDS='1 2 3 4 5' FIXED=0 PER_OP=200 KERNEL='*_sm80_*' OUT=$(BUILD)/sim-full $(SIM_FLAGS) tools/check_sim.sh $(BUILD)

bench-sim: build ## speed of the PTX simulator, checks on: million warp instructions a second of one core
	@tools/bench_sim.sh $(BUILD)

asan ubsan tsan: ## the check tier under address+undefined, undefined or thread sanitizer
	@tools/install_deps.sh check
	@tools/sanitize.sh $@

fuzz: ## libFuzzer: make fuzz T=problem_text SECONDS=300 (T=all: every target in turn)
	@tools/install_deps.sh check
	@tools/fuzz.sh $(T) $(SECONDS)

cov: ## line coverage of base, core and api; fails below 90 %
	@tools/install_deps.sh full
	@tools/coverage.sh

lint: build ## include edges, style, vocabulary, format, headers alone, binary interface
	@tools/install_deps.sh check
	@tools/check.sh lint

tidy: build ## clang-tidy over the library and the command
	@tools/install_deps.sh full
	@run-clang-tidy -quiet -p $(BUILD) -j $(JOBS) '/(src|cli)/.*\.c$$' 2>/dev/null

abi-check: build ## exported functions and struct layouts against abi.txt and tools/abi_layout.txt
	@tools/check_abi.sh $(BUILD)/libattn.so

ptxas-check: build ## GPU kernels' machine code: registers, spills, stack, serialisation (kernels/budget.tsv), instructions (kernels/sass.tsv); KERNEL='*_sm100_*'
	@tools/ptxas_check.py --kernel '$(or $(KERNEL),*)' --jobs $(JOBS) --table --need-sass $(BUILD)

python: build ## the Python package: types, tests on every Python from 3.10 on, the wheel in a clean environment
	@tools/check_python.sh $(BUILD)

python-gpu: build ## on a GPU with torch and transformers: what the Python package promises, recorded in build/log/python-gpu.json
	@LIBATTN_LIBRARY=$(BUILD)/libattn.so PYTHONPATH=python python3 python/checks --record build/log/python-gpu.json

wheel: build ## build/wheel/libattn-*.whl for systems with glibc 2.28 and later (ATTN_CUDA_CODE=all: machine code for every GPU)
	@tools/build_wheel.sh $(BUILD)

nvcc: ## fetch the CUDA compiler into build/nvcc (python3 with pip), where cmake finds it if PATH has none
	@tools/fetch_nvcc.sh

gpu-check: build ## on a GPU: every kernel against the reference, properties, graphs, streams, threads (DEVICE=cuda:0 REPEAT=50 SEEDS='1 2')
	@tools/gpu_check.sh $(BUILD)

first-contact: build ## on a Blackwell GPU: the simulator's vectors, every kernel row for sm_100, compute-sanitizer, speed beside predictions; one report
	@tools/first_contact.sh $(BUILD)

gpu-sanitize: build ## on a GPU: compute-sanitizer on a sample of problems (SAMPLE=50 SEEDS=1 KERNEL='*' TOOLS='memcheck racecheck ...')
	@PARTS=sanitize tools/gpu_check.sh $(BUILD)

figures: ## figures of README, docs/benchmarks.md and docs/joined_lists.md from bench/results
	@python3 bench/table.py --write
	@python3 bench/plot_shared.py

check-oldcpu: build ## the check tier on emulated processors without AVX-512 and without AVX
	@tools/install_deps.sh full
	@tools/check_oldcpu.sh $(BUILD)/attn

format: ## clang-format in place
	@tools/format.sh

doc: build ## man pages in build/release/man; docs/env.md and the table of docs/operators.md
	@python3 tools/make_docs.py $(BUILD)/attn
	@ls $(BUILD)/man 2>/dev/null || echo 'no man pages: scdoc is missing (apt-get install -y scdoc)'

install: deps ## make install PREFIX=/usr/local DESTDIR=
	@tools/install_deps.sh man || echo 'installing without man pages'
	@tools/build.sh release
	@DESTDIR='$(DESTDIR)' cmake --install $(BUILD) --prefix '$(PREFIX)'
	@test -n '$(DESTDIR)' || tools/loader_hint.sh $(BUILD)/install_manifest.txt

uninstall: ## remove what the last make install wrote (the same DESTDIR=)
	@DESTDIR='$(DESTDIR)' tools/uninstall.sh $(BUILD)/install_manifest.txt

clean: ## remove build/
	@rm -rf build
