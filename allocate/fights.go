package allocate

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/allocate/pools"
)

// Where somebody else writes the status of a Service that is ours, each write is an answer to the
// other's, for ever and as fast as the API server takes them. So a status that was overwritten is
// written again at once a few times only, and then after pauses that double.

const (
	// patientWrites is how often a status is written at once after somebody else wrote it.
	patientWrites = 3
	// firstPause, lastPause are between further writes.
	firstPause, lastPause = time.Second, 5 * time.Minute
	// peace is for how long, beside the pause, a status must have stayed before a fight has ended.
	peace = time.Minute
)

// contested is the reason of the Event about a Service whose status somebody else writes, too.
const contested = "StatusContested"

// fight is what is known of the writes of a Service's status.
type fight struct {
	last  outcome   // that this process wrote
	count int       // how often somebody else replaced it
	at    time.Time // of the write after count was last raised
	told  bool
}

// outcome is what a status says of its addresses.
type outcome struct{ ingress, condition string }

func outcomeOf(s *corev1.Service) (o outcome) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		mode := ""
		if i.IPMode != nil {
			mode = string(*i.IPMode)
		}
		o.ingress += i.IP + "|" + i.Hostname + "|" + mode + "\n"
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, ConditionType); c != nil {
		o.condition = string(c.Status) + c.Reason + said(c.Message)
	}
	return o
}

// pause returns how long a write waits after the one before.
func (f *fight) pause() time.Duration {
	if f.count < patientWrites {
		return 0
	}
	return min(firstPause<<min(f.count-patientWrites, 20), lastPause)
}

// mayWrite returns how long the next write of a status that is s has to wait, 0 if it need not, and
// whether it is to be said that somebody else writes it. Call it before each write.
func (c *controller) mayWrite(s *corev1.Service, now time.Time) (wait time.Duration, tell bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fights[pools.KeyOf(s)]
	if f == nil || f.last == outcomeOf(s) {
		return 0, false // nobody else wrote it: something else is decided
	}
	if now.Sub(f.at) > f.pause()+peace {
		f.count, f.told = 0, false
	}
	if wait = f.at.Add(f.pause()).Sub(now); wait > 0 && f.count >= patientWrites {
		return wait, false
	}
	f.count++
	f.at = now
	tell = f.count >= patientWrites && !f.told
	f.told = f.told || tell
	return 0, tell
}

// wrote notes what was written.
func (c *controller) wrote(s *corev1.Service) {
	key := pools.KeyOf(s)
	f := c.fights[key]
	if f == nil {
		f = &fight{}
		c.fights[key] = f
	}
	f.last = outcomeOf(s)
}

// fought reports whether somebody else writes a Service's status again and again.
func (c *controller) fought(key string, now time.Time) bool {
	f := c.fights[key]
	return f != nil && f.count >= patientWrites && now.Sub(f.at) <= f.pause()+peace
}

// tellOfFight says who else writes a Service's status.
func (c *controller) tellOfFight(ctx context.Context, s *corev1.Service) {
	who := c.rival(ctx, s)
	note := fmt.Sprintf("%s writes this Service's addresses, too, and they change again and again: let one of "+
		"the two serve it (spec.loadBalancerClass, or the other's configuration). Until then it is "+
		"written with pauses of up to %v",
		who, lastPause)
	c.log.Warn("somebody else writes a Service's status, too", "service", pools.KeyOf(s), "who", who)
	c.events.Add(serviceReference(s), corev1.EventTypeWarning, contested, "Allocate", note)
}

// rival returns the field manager that last wrote a Service's status beside this controller
// (metadata.managedFields, which the cache does not have).
func (c *controller) rival(ctx context.Context, s *corev1.Service) string {
	const unknown = "somebody else"
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now, err := c.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "who writes a Service's status is not known", slog.Any("error", err))
		return unknown
	}
	who, at := "", time.Time{}
	for _, f := range now.ManagedFields {
		if f.Manager == UserAgent || f.Subresource != "status" {
			continue
		}
		if when := f.Time; who == "" || when != nil && when.After(at) {
			who = f.Manager
			if when != nil {
				at = when.Time
			}
		}
	}
	if who == "" {
		return unknown + ", perhaps another " + UserAgent + ","
	}
	return "field manager " + who
}
