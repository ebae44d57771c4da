package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// source is the address of flows in the tests below, and flowPorts their source ports.
var (
	source    = header.AddrFrom4([4]byte{198, 51, 100, 77})
	flowPorts = []steer.NodePort{{Proto: header.ProtoTCP, Port: 20001}, {Proto: header.ProtoUDP, Port: 40000}}
)

// wantReplies fails unless exactly these ports are steered as replies.
func (r *rig) wantReplies(t *testing.T, when string, want []steer.NodePort) {
	t.Helper()
	if got := r.kernel.Held().Replies.List(); !slices.Equal(got, want) {
		t.Errorf("%s: ports %v, want %v", when, got, want)
	}
}

// TestPortsOfRepliesStayForFlows: of the ports that the process before had steered, those stay that
// flows have, as long as they have them.
func TestPortsOfRepliesStayForFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, cfg *loop.Config) {
			r.kernel.Replies = steer.AllPorts()
			r.flows.ports.Store(steer.Ports(flowPorts))
			cfg.Flows = r.flows
		})
		<-r.Ready()
		r.wantReplies(t, "after the start", flowPorts)
		time.Sleep(time.Hour)
		synctest.Wait()
		r.wantReplies(t, "an hour later", flowPorts)
		r.flows.ports.Store(steer.Ports(flowPorts[:1]))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		r.wantReplies(t, "after the last flow of one", flowPorts[:1])
		r.flows.ports.Store(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		r.wantReplies(t, "after the last flow", nil)
		if n := r.Status().Closing; n != 0 {
			t.Errorf("closing %d after the last flow", n)
		}
		r.end()
	})
}

// TestSourceBecomesTheNodes: a source address that the node did not have becomes one of the node,
// while the process runs or while none does. The ports of its flows stay steered, from before that
// moment on.
func TestSourceBecomesTheNodes(t *testing.T) {
	sourceOf := func(flags services.AddrFlags) func(*compiler.Config) {
		return func(c *compiler.Config) {
			c.SNAT4, c.LocalAddresses = []header.Addr{source}, nil
			if flags&services.AddrLocal != 0 {
				c.LocalAddresses = []header.Addr{source}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, cfg *loop.Config) {
			cc := controltest.Config()
			sourceOf(0)(&cc)
			cfg.Compiler, cfg.Flows = compiler.New(cc), r.flows
			cfg.Steering = opens{r.kernel, t}
			r.flows.ports.Store(steer.Ports(flowPorts[:1]))
		})
		<-r.Ready()
		r.wantReplies(t, "all ports are steered by the address", nil)
		r.worker.Generation.Store(r.handle.Load().Generation) // a worker has the snapshot of before yet
		if err := r.Configure(t.Context(), sourceOf(services.AddrLocal)); err != nil {
			t.Fatal(err)
		}
		r.wantReplies(t, "the node has the address", flowPorts[:1])
		r.flows.ports.Store(steer.Ports(flowPorts)) // which that worker has made
		r.worker.Generation.Store(r.handle.Load().Generation)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.wantReplies(t, "all workers have the next snapshot", flowPorts)
		r.flows.ports.Store(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		r.wantReplies(t, "after the last flow", nil)
		r.end()
	})
	t.Run("while no process ran", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(r *rig, cfg *loop.Config) {
				cc := controltest.Config()
				sourceOf(services.AddrLocal)(&cc)
				cfg.Compiler, cfg.Flows = compiler.New(cc), r.flows
				r.kernel.Addrs[source] = services.AddrSNAT
				r.flows.ports.Store(steer.Ports(flowPorts))
			})
			<-r.Ready()
			r.wantReplies(t, "after the start", flowPorts)
			r.end()
		})
	})
}

// opens is a kernel program that looks at the order of a call of Open.
type opens struct {
	*controltest.Kernel
	t *testing.T
}

func (o opens) Open(s *steer.Set) error {
	local := slices.ContainsFunc(s.Addrs, func(a steer.OwnAddr) bool { return a.Flags&services.AddrLocal != 0 })
	if held := o.Held(); local && s.Replies.Len()+held.Replies.Len() == 0 {
		o.t.Error("the address became the node's before the ports of its flows were steered")
	}
	return o.Kernel.Open(s)
}
