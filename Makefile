# What can be done here. `make test` and `make demo` need nothing beforehand on Debian.
#
#   make test                 unit and end-to-end tests, on a real API server
#   make test K8S=1.35.4      on another Kubernetes version
#   make test TESTS="harness" only some ([[test]] in Cargo.toml, or `unit`)
#   make demo                 a catalog at work, on real images; ends by itself
#   make lint                 form, habits, licences, generated files
#   make generate             writes the files that are made from the code
#   make image                the container image, in target/image; builds it and starts it
#   make bench                benchmarks, beside the peer named in each
#   make soak                 the longer rounds of the tests
#   make fuzz                 fuzz targets, SECONDS_EACH (60) each

SHELL := /bin/bash
K8S ?=
TESTS ?=
SECONDS_EACH ?= 60
export K8S SECONDS_EACH
# A Go that `make setup` fetched is used where the system has none that is new enough.
export PATH := $(PATH):$(or $(GOLDEN_CATALOG_CACHE),$(HOME)/.cache/golden-catalog)/go/bin:/usr/sbin:/sbin

.PHONY: setup tools test demo lint generate image bench soak fuzz

setup:
	@e2e/tools/setup.sh

# A whole cluster, or a folder of programs, of yours needs only the rest.
tools: setup
ifneq ($(E2E_KUBECONFIG),)
	@e2e/tools/build.sh kubectl helm >/dev/null
else ifneq ($(KUBEBUILDER_ASSETS),)
	@e2e/tools/build.sh $(filter-out $(notdir $(wildcard $(KUBEBUILDER_ASSETS)/*)),etcd kube-apiserver kube-controller-manager kubectl) helm >/dev/null
else
	@e2e/tools/build.sh >/dev/null
endif

test: tools
	@e2e/tools/test.sh $(TESTS)

demo: tools
	@echo "compiling, some minutes the first time"; cargo test --quiet --test demo

lint: tools
	@e2e/tools/lint.sh

generate:
	@UPDATE=1 cargo test --quiet --test harness generated

image: setup
	@e2e/tools/image.sh

bench: tools
	@cargo bench

soak: tools
	@cargo test --tests -- --ignored --nocapture

fuzz: setup
	@e2e/fuzz/run.sh
