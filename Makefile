# Sluice: `make help` lists the targets. Building needs Go and make only; the BPF
# object is committed. Tests and the demo need Linux 6.12 or newer and root.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS   := -s -w -X sluice.dev/sluice/serve/status.Version=$(VERSION) -X main.version=$(VERSION)
BUILD     := $(GO) build -trimpath -ldflags '$(LDFLAGS)'
FUZZTIME  ?= 60s
OUT       := bench/out
# Tests that need root share one machine, its namespaces and pins, so their packages run one after another (ALONE), and so does
# control/loop, whose TestScale holds durations to bounds. All others run beside each other (BESIDE), as in `make unit`.
TOGETHER  := SLUICE_VALIDATE=1 $(GO) test -tags root -timeout 15m
TEST      := $(TOGETHER) -p 1
ALONE      = ./control/loop $(shell grep -lrE '^//go:build.*\broot\b' --include='*_test.go' . | xargs -n 1 dirname | sort -u)
BESIDE     = $(filter-out $(ALONE),$(patsubst $(shell $(GO) list -m)/%,./%,$(shell $(GO) list ./...)))
# Of what shares memory between goroutines: for the race detector.
SHARING   := ./flowtable% ./nat% ./fastpath% ./control% ./announce% ./allocate% ./config% ./serve% ./host% ./gateway% ./cmd% ./internal%

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/sluice, bin/sluice-controller, bin/sluice-announcer and bin/sluice-bench
	CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/sluice ./cmd/sluice-controller ./cmd/sluice-announcer ./cmd/sluice-bench

.PHONY: demo
demo: build ## three namespaces, real traffic, under a minute; KEEP=1 leaves it standing
	./bin/sluice-bench demo --sluice ./bin/sluice $(if $(KEEP),--keep)

.PHONY: demo-vip
demo-vip: build cluster-binaries ## a Service gets its VIPs by BGP from two gateways, one is lost: an API server, BIRD; under a minute once Kubernetes is built; KEEP=1 leaves it standing
	./bin/sluice-bench demo-vip $(if $(KEEP),--keep)

.PHONY: test-tools
test-tools:
	@./.ci/test-tools

.PHONY: test
test: build test-tools ## every test that root can run without a cluster: some minutes
	$(TOGETHER) $(BESIDE)
	SLUICE_BINARY=$(CURDIR)/bin/sluice $(TEST) $(ALONE) # the daemon of just now: nine packages would each link one
	$(TOGETHER) -short -tags root,noasm ./nat/... ./flowtable/... ./fastpath # without the assembly: its twins

.PHONY: unit
unit: ## the tests that need no root, which is most of them: run these first
	$(GO) test ./...

.PHONY: race
race: ## what shares memory between goroutines, and the daemon on real traffic, under the race detector
	$(TOGETHER) -race -short $(filter $(SHARING),$(BESIDE))
	$(TEST) -race -short $(filter $(SHARING),$(ALONE))
	SLUICE_RACE=1 $(TEST) -run 'TestWorkersShareFlows|TestFragments|TestReload|TestClientAddressIsKept|TestDeviceDeletedAndCreated' -count=1 ./test/e2e

.PHONY: e2e
e2e: build ## the long end-to-end runs: 1 GiB transfers, kill -9, churn, ten minutes of loss, idle and memory figures: half an hour
	SLUICE_E2E=full $(TEST) -v -count=1 -timeout 60m ./test/e2e/...

.PHONY: announce
announce: build cluster-binaries ## routes beside BIRD and FRR, and layer 2, all of it: each failure ten times, 1,000 Services on an API server; half an hour
	SLUICE_CLUSTER=1 SLUICE_ANNOUNCE=full $(TEST) -v -count=1 -timeout 60m ./test/announce

RUNS      ?= 200

.PHONY: faults
faults: ## the tests of the fault plan (docs/faults.md): what comes at a random moment RUNS (200) times; an hour
	SLUICE_FAULT_RUNS=$(RUNS) $(GO) run ./test/faults/run

SOAK      ?= 60m

.PHONY: soak
soak: build ## real traffic for SOAK (60m) with faults, floods and changes: no connection breaks, nothing grows
	./bin/sluice-bench soak --duration $(SOAK)

.PHONY: cluster-binaries
cluster-binaries: ## build etcd and Kubernetes into the user's cache: minutes, once
	$(GO) run ./test/bed/cluster/build

# Not part of `test`: on a machine that has not built them, the binaries take minutes
# and download some hundred modules.
.PHONY: cluster
cluster: build cluster-binaries ## the tests against a real API server and kube-proxy
	SLUICE_CLUSTER=1 $(TEST) -count=1 ./test/bed/cluster/... ./bench/demo/vip ./allocate ./announce/cluster ./deploy
	SLUICE_CLUSTER=1 $(TEST) -count=1 -run 'TestTenant|TestOutage' ./test/e2e
	SLUICE_CLUSTER=1 $(TEST) -count=1 -v -run 'TestFirstAnswer|TestManyServices' ./test/announce

.PHONY: cluster-test
cluster-test: cluster-binaries ## the chart on a cluster of one machine, with kubelets, containerd and runc: reached, updated, removed
	SLUICE_NODES=1 $(GO) test -tags root -count=1 -timeout 20m -v -run TestChartOnACluster ./test/bed/cluster/single

# What is deployed is made by a module of its own, deploy/tools, so that Helm's library
# and image formats are not among the gateway's dependencies.
.PHONY: chart
chart: ## lint the Helm chart and render deploy/manifests from it
	cd deploy/tools && $(GO) run ./chart

.PHONY: deploy-check
deploy-check: ## the manifests are what the chart renders; the image is reproducible
	cd deploy/tools && $(GO) vet ./... && $(GO) test -count=1 ./... # its inputs are outside of its module

IMAGE_ARCHS ?= amd64 arm64
IMAGE_OF    := ./cmd/sluice ./cmd/sluice-controller ./cmd/sluice-announcer

.PHONY: image
image: ## bin/sluice-image.tar: an OCI image of gateway, controller and announcer, reproducible, without Docker (VERSION=tag)
	for arch in $(IMAGE_ARCHS); do CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(BUILD) -o bin/$$arch/ $(IMAGE_OF) || exit 1; done
	cd deploy/tools && $(GO) run ./image -o ../../bin/sluice-image.tar -version $(VERSION) -revision "$$(git rev-parse HEAD)" \
		$(foreach arch,$(IMAGE_ARCHS),$(arch)=../../bin/$(arch)/sluice,../../bin/$(arch)/sluice-controller,../../bin/$(arch)/sluice-announcer)

# A release is of a commit: nothing in it depends on when and in which directory it is built, nor on the settings of a
# user's Go. REBUILD=-a compiles everything anew, whatever is in the build cache.
RELEASE_GO := CGO_ENABLED=0 GOFLAGS= GOWORK=off GOEXPERIMENT= GOOS=linux GOAMD64=v1 GOARM64=v8.0
REVISION  = $(shell git rev-parse HEAD)
RELEASED  := $(foreach arch,amd64 arm64,$(arch)=../../bin/$(arch)/sluice,../../bin/$(arch)/sluice-controller,../../bin/$(arch)/sluice-announcer)

.PHONY: release
release: ## dist/: binaries, image, chart, SBOMs and SHA256SUMS of a version, reproducible (VERSION=0.1.0)
	@test -z "$$(git status --porcelain)" || { echo 'the tree has changes, and a release is of a commit: commit them' >&2; exit 1; }
	cd deploy/tools && $(GO) run ./release -check -version '$(VERSION)'
	rm -rf dist && mkdir dist
	for arch in amd64 arm64; do $(RELEASE_GO) GOARCH=$$arch $(GO) build $(REBUILD) -trimpath -buildvcs=false \
		-ldflags '$(LDFLAGS) -X sluice.dev/sluice/serve/status.Commit=$(REVISION)' -o bin/$$arch/ $(IMAGE_OF) || exit 1; done
	cd deploy/tools && $(GO) run ./image -o ../../dist/sluice-$(VERSION)-image.tar -version $(VERSION) -revision $(REVISION) $(RELEASED)
	cd deploy/tools && $(GO) run ./release -dir ../../dist -version $(VERSION) -revision $(REVISION) \
		-time $$(git log -1 --format=%ct) $(RELEASED)

.PHONY: release-push
release-push: ## image and chart of dist/ to a registry (REGISTRY=host/owner VERSION=0.1.0), with the credentials of docker login
	cd deploy/tools && $(GO) run ./release -dir ../../dist -version '$(VERSION)' -time $$(git log -1 --format=%ct) -push '$(REGISTRY)'

.PHONY: release-check
release-check: ## the release of HEAD twice, in two clones, the second compiled anew: equal files; minutes
	./.ci/release-check

# The gateway in QEMU guests: NICs that do zero-copy, other kernels. QEMU and kernels come by apt into the user's cache; nothing
# is installed. PATIENCE=3 multiplies bounds of time, for a machine that has more to do; ONLY=regexp picks guests.
PATIENCE  ?= 1
VMTEST    := ./bin/sluice-bench vm test --patience $(PATIENCE) --only '$(ONLY)'

.PHONY: vm-test-ci
vm-test-ci: build ## two guests with NICs in zero-copy: regression tests; minutes
	$(VMTEST) --set ci --logs $(OUT)/vm-ci

.PHONY: vm-test
vm-test: build ## guests with each NIC that QEMU has, zero-copy and not: traffic, kill -9, links down and up; a quarter of an hour
	$(VMTEST) --set short --logs $(OUT)/vm

.PHONY: vm-test-full
vm-test-full: build ## the same on the oldest kernel and the newest ones, and what changes under a running gateway; hours
	$(VMTEST) --set full --logs $(OUT)/vm-full

# Tests for arm64, whose processor QEMU emulates; the kernel is this machine's. Left out, as the emulation has not what they test:
#   TestFileInUse  starts itself again: this kernel runs no program of arm64
#   TestHugePages, TestTakenPagesStay, TestFramesInHugePages  read smaps: QEMU writes that file itself, with zeros
# The package fastpath itself takes more than ten minutes so, and has no assembly: ARM64_PACKAGES=./fastpath ARM64_TIMEOUT=1h.
ARM64_PACKAGES ?= ./nat/... ./flowtable/... ./fastpath/services ./fastpath/stats ./fastpath/thread ./fastpath/xsk/... ./control/maglev
ARM64_TIMEOUT  ?= 20m
ARM64_WITHOUT  := ^(TestFileInUse|TestHugePages|TestTakenPagesStay|TestFramesInHugePages)$$

.PHONY: arm64-test
arm64-test: build ## unit tests as built for arm64, on an emulated processor: what has assembly, and its neighbours; minutes
	GOARCH=arm64 $(GO) vet ./nat/... ./flowtable/... # the stubs in assembly: frame sizes, arguments
	CGO_ENABLED=0 GOARCH=arm64 $(GO) test -short -timeout $(ARM64_TIMEOUT) -skip '$(ARM64_WITHOUT)' -exec '$(CURDIR)/bin/sluice-bench vm emulate --' $(ARM64_PACKAGES)

# What kernels without modules lack, on one of Debian's, in a guest (docs/lab.md). Programs are built here: the guest's
# processor is emulated. SLUICE_NO_SKIP has a test fail there that would be skipped here.
KERNEL    ?= trixie-backports
SLOWER    ?= 10
KERNEL_TESTS ?= TestSCTP|TestNetem|TestVLAN|TestPktgen
GUEST     := $(OUT)/guest
IN_GUEST  := SLUICE_NO_SKIP=1 SLUICE_SLOWER=$(SLOWER) SLUICE_BINARY=$(CURDIR)/bin/sluice ./bin/sluice-bench vm run --kernel $(KERNEL)

.PHONY: vm-kernel-test
vm-kernel-test: build ## SCTP, netem, 802.1Q devices and the kernel's pktgen, in a guest that has them (KERNEL=suite, KERNEL_TESTS=regexp)
	mkdir -p $(GUEST)
	$(GO) test -tags root -c -o $(GUEST)/e2e.test ./test/e2e
	$(GO) test -tags root -c -o $(GUEST)/topo.test ./test/bed/topo
	$(IN_GUEST) --memory 4G --module pktgen --limit 60m -- sh -ec ' \
		cd test/bed/topo && ../../../$(GUEST)/topo.test -test.v -test.run "Kernel|Impair"; \
		cd ../e2e && ../../$(GUEST)/e2e.test -test.v -test.timeout 55m -test.run "$(KERNEL_TESTS)"'

.PHONY: vm-systemd-test
vm-systemd-test: build ## the systemd unit in a guest: started, reloaded, killed, stopped; minutes
	./bin/sluice-bench vm run --memory 3G --limit 20m -- bash test/vm/systemd.sh

# kube-proxy in mode ipvs runs where the kernel has IPVS, on a subset of the cases (docs/conformance.md). A guest has no
# network: everything it runs is built and fetched here. It has memory enough for programs in Go to collect little garbage.
.PHONY: vm-conformance-diff
vm-conformance-diff: build ## conformance-diff AGAINST=ipvs, in a guest whose kernel has IPVS (KERNEL=suite, CASES=regexp)
	$(GO) run ./test/bed/cluster/build -tools
	mkdir -p $(GUEST)
	$(GO) test -tags root -c -o $(GUEST)/conformance.test ./test/conformance
	GOGC=800 SLUICE_CLUSTER=1 SLUICE_AGAINST=ipvs SLUICE_CASES='$(CASES)' $(IN_GUEST) --memory 6G --module ip_vs --limit 90m -- sh -ec ' \
		cd test/conformance && ../../$(GUEST)/conformance.test -test.v -test.timeout 85m -test.run "TestConformance$$"'

# The long tests, without measurements (bench-full). A part that fails does not keep the others from running.
.PHONY: nightly
nightly: build ## the long tests one after another: hours; fails at the end if a part failed
	@failed=; for part in release-check vm-test-full vm-kernel-test vm-systemd-test e2e announce cluster cluster-test upstream-test conformance conformance-diff vm-conformance-diff fuzz fuzz-objects fuzz-packets; do \
		echo "== $$part"; $(MAKE) $$part || failed="$$failed $$part"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

AGAINST   ?= nftables

.PHONY: conformance
conformance: cluster-binaries ## every row of docs/kubernetes.md on a real API server, with real packets (CASES=regexp); the first time it downloads modules
	SLUICE_CLUSTER=1 SLUICE_CASES='$(CASES)' $(TEST) -count=1 -v -run 'TestConformance|TestEveryRow' ./test/conformance

.PHONY: conformance-diff
conformance-diff: cluster-binaries ## the same packets to kube-proxy (AGAINST=nftables, iptables, ipvs): every difference
	SLUICE_CLUSTER=1 SLUICE_AGAINST=$(AGAINST) SLUICE_CASES='$(CASES)' $(TEST) -count=1 -run TestConformance -v ./test/conformance

.PHONY: conformance-doc
conformance-doc: ## the tables of docs/conformance.md
	$(GO) test -count=1 -run TestTables ./test/conformance -update

.PHONY: upstream-binaries
upstream-binaries: cluster-binaries ## build Kubernetes' e2e.test and what its cases run into the user's cache: many minutes, once
	$(GO) run ./test/upstream/build

.PHONY: upstream-test
upstream-test: build upstream-binaries ## Kubernetes' own tests of Services against a cluster with the gateway in front (CASES=regexp)
	SLUICE_CLUSTER=1 SLUICE_CASES='$(CASES)' SLUICE_VALIDATE=1 $(GO) test -tags root -timeout 3h -count=1 -v -run 'TestUpstream|TestBalancer' ./test/upstream

.PHONY: upstream-doc
upstream-doc: ## the tables of docs/upstream.md
	$(GO) test -count=1 -run TestTables ./test/upstream -update

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (60s)
	./bench/fuzz.sh $(FUZZTIME)

OBJECTS   ?= 1000000

.PHONY: fuzz-objects
fuzz-objects: ## mutated Services, EndpointSlices and Nodes beside good ones, OBJECTS (1000000) of them
	SLUICE_OBJECTS=$(OBJECTS) $(GO) test -count=1 -timeout 30m -run TestMutatedObjects -v ./control/compiler

PACKETS   ?= 10000000

.PHONY: fuzz-packets
fuzz-packets: ## mutated packets beside open flows, judged by a decoder of its own: PACKETS (10000000) of them in memory; minutes
	SLUICE_PACKETS=$(PACKETS) $(GO) test -count=1 -timeout 60m -run 'TestGarbage$$' -v ./fastpath

# Results lie in bench/out, which git ignores; those of the quick set beside it, so that they
# never pass for the full ones. An experiment that fails is a line of the report, so the
# report is written all the same, and make fails after it.
LAB       := ./bin/sluice-bench

.PHONY: bench
bench: build ## the quick set, under 3 minutes: Go benchmarks, and experiments that need no cluster (NOTE=remark)
	$(LAB) bench go --out $(OUT)/quick
	$(LAB) bench run --set quick --out $(OUT)/quick --note '$(NOTE)'; failed=$$?; \
	$(LAB) report --from $(OUT)/quick/*.json >$(OUT)/quick/report.md && exit $$failed

.PHONY: bench-report
bench-report: build cluster-binaries ## every experiment, full length, then bench/out/report.md (ONLY=names,of,experiments)
	$(LAB) bench run --set full --out $(OUT) $(if $(ONLY),--only $(ONLY)) --note '$(NOTE)'; failed=$$?; \
	$(LAB) report --from $(OUT)/*.json >$(OUT)/report.md && exit $$failed

.PHONY: bench-compare
bench-compare: build ## the Go benchmarks of today against the baseline, by benchstat
	$(LAB) bench go --out $(OUT)
	$(LAB) bench compare --baseline bench/baselines --now $(OUT)

.PHONY: bench-baseline
bench-baseline: build ## replace bench/baselines and the figures of README and docs by Go benchmarks of now and the last bench-report
	$(LAB) bench go --count 10 --benchtime 50ms --out $(OUT)
	$(LAB) bench baseline --go $(OUT) --experiments $(OUT) --to bench/baselines
	$(MAKE) figures

.PHONY: bench-full
bench-full: ## bench-report, then bench-baseline: all of docs/benchmarks.md; hours, on a quiet machine
	-$(MAKE) bench-report
	$(MAKE) bench-baseline

.PHONY: figures
figures: build ## docs/benchmarks.md, README's ratios and docs/plots from bench/baselines
	$(LAB) report --from bench/baselines/*.json bench/baselines/*/*.json --docs .

.PHONY: generate
generate: ## rebuild the BPF object and its Go (needs clang, llvm and libbpf-dev)
	$(GO) generate ./xdpprog ./test/bed/stateless ./bench/tail ./bench/xdpnat

.PHONY: generate-check
generate-check: ## the committed BPF object is what its source compiles to
	./.ci/generate-check

.PHONY: lint
lint: ## formatting, columns, vet, linters, spelling
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'gofmt would change the files above'; exit 1; }
	$(GO) test ./test/rules -run Columns
	$(GO) vet ./...
	$(GO) vet -tags root ./...
	cd deploy/tools && $(GO) vet ./... # a module of its own: its go.sum has to know what the gateway imports
	$(GO) tool staticcheck -tags root ./... # without the tag, much of bench is used by no test
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo 'these are marks of a merge: resolve it' >&2; exit 1; }
	cd deploy/tools && $(GO) tool actionlint ../../.github/workflows/*.yaml
	@git ls-files "*.go" "*.c" "*.h" "*.s" "*.md" "*.yaml" Makefile | xargs $(GO) tool misspell -error

.PHONY: check
check: lint generate-check test race ## most of what CI runs (.ci/run has the rest)
