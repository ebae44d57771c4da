package compiler

import (
	"testing"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// TestIdentity pins the number that affinity pins are keyed by: gateways of
// different versions must agree. The value is what
// printf default/web:http/TCP | sha256sum | head -c 16 prints.
func TestIdentity(t *testing.T) {
	web := objects.ServicePort{Name: "http", Proto: 6}
	got := serviceIdentity(unitKey{"default", "web"}, web)
	if got != identityOfWeb {
		t.Errorf("got %#x, want %#x", got, uint64(identityOfWeb))
	}
	web.Port, web.NodePort = 80, 30080
	if serviceIdentity(unitKey{"default", "web"}, web) != got {
		t.Error("a port's number changes it")
	}
	if web.Proto = 17; serviceIdentity(unitKey{"default", "web"}, web) == got {
		t.Error("the protocol does not")
	}
}

const identityOfWeb = 0x7abb66a466fc0a50

// TestIndexesOfLiveFlowsAreNotReused: a number whose last owner still has flows is not given out,
// and is when they are over.
func TestIndexesOfLiveFlowsAreNotReused(t *testing.T) {
	ids := newIdentities()
	busy := map[services.BackendRef]bool{}
	ids.busy = func(r services.BackendRef) bool { return busy[r] }
	var refs []services.BackendRef
	for range 3 * maxRecheck {
		r, _ := ids.backend()
		refs = append(refs, r)
		busy[r] = true
		ids.retireBackend(r, 1, 1)
	}
	ids.release(1)
	ids.release(1)
	if r, _ := ids.backend(); r.Index() != 3*maxRecheck+1 {
		t.Fatalf("index %d is given out, and its flows live", r.Index())
	}
	delete(busy, refs[5])
	for range 3 {
		ids.release(1)
	}
	again, _ := ids.backend()
	if again.Index() != refs[5].Index() || again == refs[5] {
		t.Fatalf("got %#x, want index %d again", again, refs[5].Index())
	}
	if r, _ := ids.backend(); r.Index() != 3*maxRecheck+2 || len(ids.waiting) != 3*maxRecheck-1 {
		t.Errorf("next is %d, %d wait", r.Index(), len(ids.waiting))
	}
}

// TestIndexesAreReused: a number comes back only after its release, the
// longest unused first, with another generation.
func TestIndexesAreReused(t *testing.T) {
	ids := newIdentities()
	first, _ := ids.backend()
	second, _ := ids.backend()
	ids.retireBackend(first, 1, 5)
	ids.retireBackend(second, 1, 6)
	ids.release(4)
	if third, _ := ids.backend(); third.Index() != 3 {
		t.Errorf("index %d is given out while generation 4 is in use", third.Index())
	}
	ids.release(5)
	again, _ := ids.backend()
	if again.Index() != first.Index() || again == first {
		t.Errorf("%#x after %#x was released", again, first)
	}
	if next, _ := ids.backend(); next.Index() == second.Index() {
		t.Error("index 2 is given out while generation 5 is in use")
	}
}

func TestGenerationsWrapWithoutZero(t *testing.T) {
	ids := newIdentities()
	seen := map[services.BackendRef]bool{}
	for n := range uint64(services.BackendGenerations - 1) {
		r, _ := ids.backend()
		if seen[r] || r.Generation() == 0 {
			t.Fatalf("use %d of index 1 is ref %#x", n, r)
		}
		seen[r] = true
		ids.retireBackend(r, 1, n)
		ids.release(n)
	}
	if r, _ := ids.backend(); r.Generation() != 1 {
		t.Errorf("after all generations comes %d", r.Generation())
	}
}

func TestBackendsRunOut(t *testing.T) {
	ids := newIdentities()
	ids.backends.next = services.MaxBackends - 1
	if _, ok := ids.backend(); !ok {
		t.Error("the last backend is not given out")
	}
	if r, ok := ids.backend(); ok {
		t.Errorf("backend %d is given out", r.Index())
	}
}
