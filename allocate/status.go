package allocate

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/kubewatch"
)

// ConditionType is the type of the condition that shows a Service's addresses, or why it has none.
const ConditionType = "sluice.dev/Allocated"

// Reasons of the condition in addition to pools.Reason.
const (
	assigned = "Assigned"
	// pending: a new leader has not decided yet.
	pending = "Pending"
)

// decidedBy separates a condition's message from the leader that wrote it. A condition that differs
// only in the leader is not written again, except by a new leader (fence).
const decidedBy = "; leader "

func condition(r pools.Result, leader string) metav1.Condition {
	c := metav1.Condition{Type: ConditionType, Status: metav1.ConditionTrue, Reason: assigned}
	switch {
	case r.Refusal != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(r.Refusal.Reason), r.Refusal.Message
	case len(r.Addresses) == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pending, "it has no ClusterIP yet"
	default:
		if c.Message = pools.Join(r.Addresses); r.Pool != "" {
			c.Message += " of pool " + r.Pool
		}
		for _, n := range r.Notes {
			c.Message += "; " + string(n.Reason) + ": " + n.Message
		}
	}
	c.Message = kubewatch.Clip(c.Message, maxMessage) + decidedBy + leader
	return c
}

// maxMessage keeps a message well below the API's bound of 32,768 bytes.
const maxMessage = 1000

// withResult returns a Service with a decision in its status, and whether the status changed.
func withResult(s *corev1.Service, r pools.Result, leader string) (*corev1.Service, bool) {
	next := withOwnStatus(s)
	changed := setIngress(&next.Status, r.Addresses)
	return next, setCondition(&next.Status, condition(r, leader)) || changed
}

// withOwnStatus returns a Service whose status may be changed; the rest is shared with s.
func withOwnStatus(s *corev1.Service) *corev1.Service {
	next := *s
	s.Status.DeepCopyInto(&next.Status)
	return &next
}

// withoutResult returns a Service without the addresses and the condition of this controller.
func withoutResult(s *corev1.Service) (*corev1.Service, bool) {
	next := s.DeepCopy()
	if meta.FindStatusCondition(next.Status.Conditions, ConditionType) == nil {
		return next, false // this controller never served it
	}
	meta.RemoveStatusCondition(&next.Status.Conditions, ConditionType)
	next.Status.LoadBalancer.Ingress = nil
	return next, true
}

// setIngress writes addresses, unless the status has exactly these, in any order and with mode VIP.
func setIngress(status *corev1.ServiceStatus, addresses []netip.Addr) (changed bool) {
	has := status.LoadBalancer.Ingress
	same := len(has) == len(addresses) && !slices.ContainsFunc(has, func(i corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(i.IP)
		return err != nil || i.Hostname != "" || i.IPMode != nil && *i.IPMode != corev1.LoadBalancerIPModeVIP ||
			!slices.Contains(addresses, a)
	}) && !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !lists(has, a) })
	if same {
		return false
	}
	vip := corev1.LoadBalancerIPModeVIP
	status.LoadBalancer.Ingress = nil
	for _, a := range addresses {
		status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	return true
}

func lists(has []corev1.LoadBalancerIngress, address netip.Addr) bool {
	return slices.ContainsFunc(has, func(i corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(i.IP)
		return err == nil && a == address
	})
}

func setCondition(status *corev1.ServiceStatus, c metav1.Condition) (changed bool) {
	old := meta.FindStatusCondition(status.Conditions, ConditionType)
	if old != nil && old.Status == c.Status && old.Reason == c.Reason &&
		withoutLeader(old.Message) == withoutLeader(c.Message) {
		return false
	}
	return meta.SetStatusCondition(&status.Conditions, c)
}

// withoutLeader returns a condition's message without the leader.
func withoutLeader(message string) string {
	if i := strings.LastIndex(message, decidedBy); i >= 0 {
		return message[:i]
	}
	return message
}

// marked returns a Service whose condition names the leader, so that it differs from s.
func marked(s *corev1.Service, leader string) *corev1.Service {
	next := s.DeepCopy()
	c := metav1.Condition{Type: ConditionType, Status: metav1.ConditionUnknown, Reason: pending,
		Message: "nothing is decided yet"}
	if old := meta.FindStatusCondition(next.Status.Conditions, ConditionType); old != nil {
		c = *old
	}
	c.Message = withoutLeader(c.Message) + decidedBy + leader
	meta.SetStatusCondition(&next.Status.Conditions, c)
	return next
}
