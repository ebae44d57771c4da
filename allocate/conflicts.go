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

// If another client also writes the status of a Service of this controller, the two overwrite each
// other for ever, as fast as the API server accepts. So an overwritten status is written again at
// once only a few times, and then after pauses that double.

const (
	// patientWrites is how often a status is rewritten without a pause after another client wrote
	// it.
	patientWrites = 3
	// firstPause, lastPause bound the pause before further writes.
	firstPause, lastPause = time.Second, 5 * time.Minute
	// peace is how long, in addition to the pause, a status must stay unchanged to end a conflict.
	peace = time.Minute
)

// contested is the reason of the Event about a Service whose status another client also writes.
const contested = "StatusContested"

// conflict is the history of writes of a Service's status.
type conflict struct {
	last     outcome   // the outcome that this process wrote
	count    int       // how often another client replaced it
	at       time.Time // of the write after count was last raised
	reported bool
}

// outcome is the part of a status that this controller writes.
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
		o.condition = string(c.Status) + c.Reason + withoutLeader(c.Message)
	}
	return o
}

// pause returns how long a write must wait after the previous one.
func (f *conflict) pause() time.Duration {
	if f.count < patientWrites {
		return 0
	}
	return min(firstPause<<min(f.count-patientWrites, 20), lastPause)
}

// mayWrite returns how long the next write of a Service's status must wait, 0 if not at all, and
// whether to report that another client writes it. s has the current status. Call it before each
// write.
func (c *controller) mayWrite(s *corev1.Service, now time.Time) (wait time.Duration, report bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.conflicts[pools.KeyOf(s)]
	if f == nil || f.last == outcomeOf(s) {
		return 0, false // no other client wrote it: the decision changed
	}
	if now.Sub(f.at) > f.pause()+peace {
		f.count, f.reported = 0, false
	}
	if wait = f.at.Add(f.pause()).Sub(now); wait > 0 && f.count >= patientWrites {
		return wait, false
	}
	f.count++
	f.at = now
	report = f.count >= patientWrites && !f.reported
	f.reported = f.reported || report
	return 0, report
}

// wrote records the status that this process wrote.
func (c *controller) wrote(s *corev1.Service) {
	key := pools.KeyOf(s)
	f := c.conflicts[key]
	if f == nil {
		f = &conflict{}
		c.conflicts[key] = f
	}
	f.last = outcomeOf(s)
}

// inConflict reports whether another client writes a Service's status repeatedly.
func (c *controller) inConflict(key string, now time.Time) bool {
	f := c.conflicts[key]
	return f != nil && f.count >= patientWrites && now.Sub(f.at) <= f.pause()+peace
}

// reportConflict reports the client that also writes a Service's status, in the log and an Event.
func (c *controller) reportConflict(ctx context.Context, s *corev1.Service) {
	who := c.rival(ctx, s)
	note := fmt.Sprintf("%s also writes this Service's addresses, and they change again and again: let only one of "+
		"the two serve it (spec.loadBalancerClass, or the other's configuration). Until then it is "+
		"written with pauses of up to %v",
		who, lastPause)
	c.log.Warn("another client also writes a Service's status", "service", pools.KeyOf(s), "who", who)
	c.events.Add(serviceReference(s), corev1.EventTypeWarning, contested, "Allocate", note)
}

// rival returns the field manager, other than this controller, that last wrote a Service's status
// (metadata.managedFields, which the cache does not have).
func (c *controller) rival(ctx context.Context, s *corev1.Service) string {
	const unknown = "another client"
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now, err := c.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "the writer of a Service's status is unknown", slog.Any("error", err))
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
