# Sluice: `make help` lists the targets. Building needs Go and make only; the BPF
# object is committed. Tests and the demo need Linux 6.12 or newer and root.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS   := -s -w -X sluice.dev/sluice/serve/status.Version=$(VERSION) -X main.version=$(VERSION)
BUILD     := $(GO) build -trimpath -ldflags '$(LDFLAGS)'
# Without DWARF, which no test reads, a test binary links in two thirds of the time; `make lint` vets.
TOGETHER  := SLUICE_VALIDATE=1 $(GO) test -tags root -timeout 15m -ldflags=-w -vet=off
# Packages with tests that need root (ROOTED) run in namespaces of their own (`sluice-bench
# isolate`), ATONCE at the same time, as they wait more than they compute; the package that takes
# longest is the FIRST. The packages of ALONE run one after another: control/loop and test/announce
# measure durations, and the latter downloads BIRD and FRR; test/bed/stateless measures a rate; the
# BPF programs of bench/tail read PIDs of the machine's first namespace. The tests of test/e2e in
# TIMED run without other packages, too: they need the whole processor.
ATONCE    ?= 3
ISOLATED  := $(TOGETHER) -p $(ATONCE) -parallel 4 -exec '$(CURDIR)/bin/sluice-bench isolate --'
ALONE     := ./control/loop ./bench/tail ./test/bed/stateless ./test/announce
TIMED     := ^(TestBesideManyPackets|TestSharedWorkersAreRealTime|TestWorkersFollowPackets|TestEstablishedFirst|TestIdle)$$
ROOTED     = $(sort $(shell grep -lrE '^//go:build.*\broot\b' --include='*_test.go' . | xargs -n 1 dirname))
FIRST     := ./test/e2e
APART      = $(FIRST) $(filter-out $(ALONE) $(FIRST),$(ROOTED))
BESIDE     = $(filter-out $(ALONE) $(ROOTED),$(patsubst $(shell $(GO) list -m)/%,./%,$(shell $(GO) list ./...)))
# Packages whose goroutines share memory, for the race detector. SINGLE have no goroutines.
SHARING   := ./flowtable% ./nat% ./fastpath% ./control% ./announce% ./allocate% ./config% ./serve% ./host% ./gateway% ./cmd% ./internal%
SINGLE    := ./gateway/group/model ./gateway/group/session ./gateway/group/wire

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/sluice, sluice-controller, sluice-announcer, kubectl-sluice and sluice-bench
	CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/sluice ./cmd/sluice-controller ./cmd/sluice-announcer ./cmd/kubectl-sluice \
		./cmd/sluice-bench

.PHONY: demo
demo: build ## three namespaces, real traffic, under a minute; KEEP=1 leaves it standing
	./bin/sluice-bench demo --sluice ./bin/sluice $(if $(KEEP),--keep)

.PHONY: test
test: build ## every test that root can run without a cluster: some minutes
	@./.ci/test-tools
	$(TOGETHER) $(BESIDE)
	SLUICE_BINARY=$(CURDIR)/bin/sluice $(TOGETHER) -p 1 -parallel 4 $(ALONE)
	SLUICE_BINARY=$(CURDIR)/bin/sluice $(TOGETHER) -run '$(TIMED)' ./test/e2e
	SLUICE_BINARY=$(CURDIR)/bin/sluice $(ISOLATED) -skip '$(TIMED)' $(APART) # or nine packages link a daemon each
	$(TOGETHER) -short -tags root,noasm ./nat/... ./flowtable/... ./fastpath # the Go twins of the assembly

.PHONY: unit
unit: ## the tests that need no root, which are most of them: run these first
	$(GO) test ./...

.PHONY: race
race: build ## packages whose goroutines share memory, and the daemon on real traffic, under the race detector
	$(TOGETHER) -race -short $(filter-out $(SINGLE),$(filter $(SHARING),$(BESIDE)))
	$(ISOLATED) -race -short $(filter $(SHARING),$(APART))
	$(TOGETHER) -p 1 -race -short $(filter $(SHARING),$(ALONE))
	SLUICE_RACE=1 $(ISOLATED) -run 'TestWorkersShareFlows|TestFragments|TestReload|TestClientAddressIsKept|TestDeviceDeletedAndCreated' -count=1 ./test/e2e

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
PLUGINS   := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64
RELEASED  := $(foreach arch,amd64 arm64,$(arch)=../../bin/$(arch)/sluice,../../bin/$(arch)/sluice-controller,../../bin/$(arch)/sluice-announcer)

.PHONY: release
release: ## dist/: binaries, image, chart, SBOMs and SHA256SUMS of a version, reproducible (VERSION=0.1.0)
	@test -z "$$(git status --porcelain)" || { echo 'the tree has changes, and a release is of a commit: commit them' >&2; exit 1; }
	cd deploy/tools && $(GO) run ./release -check -version '$(VERSION)'
	rm -rf dist && mkdir dist
	for arch in amd64 arm64; do $(RELEASE_GO) GOARCH=$$arch $(GO) build $(REBUILD) -trimpath -buildvcs=false \
		-ldflags '$(LDFLAGS) -X sluice.dev/sluice/serve/status.Commit=$(REVISION)' -o bin/$$arch/ $(IMAGE_OF) || exit 1; done
	for system in $(PLUGINS); do $(RELEASE_GO) GOOS=$${system%-*} GOARCH=$${system#*-} $(GO) build $(REBUILD) \
		-trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/$$system/ ./cmd/kubectl-sluice || exit 1; done
	cd deploy/tools && $(GO) run ./image -o ../../dist/sluice-$(VERSION)-image.tar -version $(VERSION) -revision $(REVISION) $(RELEASED)
	rm -rf bin/man && cd deploy/tools && $(GO) run ./man -time $$(git log -1 --format=%ct) ../../bin/man
	cd deploy/tools && $(GO) run ./release -dir ../../dist -version $(VERSION) -revision $(REVISION) \
		-time $$(git log -1 --format=%ct) -man ../../bin/man $(RELEASED) \
		$(foreach system,$(PLUGINS),\
			kubectl:$(system)=../../bin/$(system)/kubectl-sluice$(if $(filter windows%,$(system)),.exe))

.PHONY: bench
bench: ## the quick set of measurements, under 3 minutes (NOTE=remark); `make -C bench help` lists the others
	@$(MAKE) --no-print-directory -C bench quick

.PHONY: generate
generate: ## rebuild the BPF object and its Go (needs clang, llvm and libbpf-dev), and the configuration's schema
	$(GO) generate ./config ./xdpprog ./test/bed/stateless ./bench/tail ./bench/xdpnat

.PHONY: lint
lint: ## formatting, columns, vet, linters, spelling
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'gofmt would change the files above'; exit 1; }
	$(GO) test ./test/rules -run Columns
	$(GO) vet ./...
	$(GO) vet -tags root ./...
	cd deploy/tools && $(GO) vet ./... # a module of its own: its go.sum has to know what the gateway imports
	cd test/ui && $(GO) vet ./... # likewise
	$(GO) tool staticcheck -tags root ./... # without the tag, much of bench is used by no test
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' || { echo 'these are marks of a merge: resolve it' >&2; exit 1; }
	cd deploy/tools && $(GO) tool actionlint ../../.github/workflows/*.yaml
	@git ls-files "*.go" "*.c" "*.h" "*.s" "*.md" "*.yaml" "*Makefile" | xargs $(GO) tool misspell -error

.PHONY: check
check: lint ## lint, generated files, test, race: most of what CI runs (.ci/run has the rest)
	./.ci/generate-check
	$(MAKE) test race
