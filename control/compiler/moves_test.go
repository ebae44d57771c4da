package compiler_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// TestMoves: UDP flows are compared with the owners of their frontends again (Snapshot.Moves) when
// an object gives a frontend to another service port, and not when frontends of others come and go.
func TestMoves(t *testing.T) {
	service := func(i int, edit func(*corev1.Service)) *corev1.Service {
		s := controltest.Service(i)
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "a", Port: 80, NodePort: int32(20000 + 2*i), Protocol: corev1.ProtocolUDP},
			{Name: "b", Port: 81, NodePort: int32(20001 + 2*i), Protocol: corev1.ProtocolUDP},
		}
		edit(s)
		return s
	}
	with := func(i int, vips ...string) *corev1.Service {
		return service(i, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = nil
			for _, v := range vips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: v})
			}
		})
	}
	const vip, other = "203.0.113.1", "203.0.113.2"
	nodePort := func(i int, port int32) *corev1.Service {
		return service(i, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = port })
	}
	for _, tt := range []struct {
		name  string
		steps [][]any // each is compiled by itself, those after the first change what is asked
		want  bool
	}{
		{"the address", [][]any{{with(1, vip), with(2)}, {with(1), with(2, vip)}}, true},
		{"the address, nobody's in between", [][]any{{with(1, vip), with(2)}, {with(1)}, {with(2, vip)}}, true},
		{"its Service is deleted", [][]any{{with(1, vip), with(2)}, {nil}, {with(2, vip)}}, true},
		{"an external IP gets it", [][]any{{with(1, vip), with(2)}, {with(1), service(2, func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{vip}
		})}}, true},
		{"the node port", [][]any{{nodePort(1, 25000), nodePort(2, 25001)}, {nodePort(1, 25002)},
			{nodePort(2, 25000)}}, true},
		{"numbers of ports are exchanged", [][]any{{with(1, vip)}, {service(1, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IP = vip
			s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 81, 80
		})}}, true},
		{"names of ports are exchanged", [][]any{{with(1, vip)}, {service(1, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IP = vip
			s.Spec.Ports[0].Name, s.Spec.Ports[1].Name = "b", "a"
		})}}, true},
		{"lost and given back", [][]any{{with(1, vip), with(2)}, {with(1)}, {with(1, vip)}}, false},
		{"other addresses and Services", [][]any{{with(1, vip), with(2)}, {with(2, other)}, {with(3, "203.0.113.3")},
			{with(2)}}, false},
		{"over TCP", [][]any{{controltest.Service(1)}, {nil}, {service(2, func(s *corev1.Service) {
			s.Status.LoadBalancer = controltest.Service(1).Status.LoadBalancer
			s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
		})}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, c := tracker.New(), compiler.New(controltest.Config())
			var before, now uint32
			for i, step := range tt.steps {
				for _, o := range step {
					if s, ok := o.(*corev1.Service); ok {
						tr.Upsert(controltest.Source, s)
					} else {
						tr.Delete(controltest.Source, objects.ObjectID{Kind: objects.KindService, Namespace: "bench",
							Name: "service-1"})
					}
				}
				s, _, _ := c.Compile(tr.Changes())
				if now = s.Moves; i == 0 {
					before = now
				}
			}
			if got := now != before; got != tt.want {
				t.Errorf("moved %v, want %v: %d, then %d", got, tt.want, before, now)
			}
			s, _, _ := c.Rebuild(tr.State())
			if s.Moves <= now {
				t.Errorf("%d moves after the table was built from nothing, %d before", s.Moves, now)
			}
		})
	}
}
