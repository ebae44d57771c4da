package allocate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"sluice.dev/sluice/control/pools"
)

// fence writes every Service that is ours, so that no write of a leader before can succeed, and
// returns all Services as they are then. Their addresses are untouched.
func (c *controller) fence(ctx context.Context, services []*corev1.Service) ([]*corev1.Service, error) {
	list := make([]*corev1.Service, len(services))
	errs := make([]error, len(services))
	workqueue.ParallelizeUntil(ctx, c.config.Workers, len(services), func(i int) {
		if list[i] = services[i]; c.ours(services[i]) {
			list[i], errs[i] = c.fenceOne(ctx, services[i])
		}
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	kept := list[:0]
	for _, s := range list {
		if s != nil {
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// fencePause is between two tries.
const fencePause = 500 * time.Millisecond

// fenceOne returns a Service as written, or nil if it was deleted.
func (c *controller) fenceOne(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	for ctx.Err() == nil {
		after, err := c.update(ctx, marked(s, c.config.Identity))
		switch {
		case err == nil:
			return after, nil
		case apierrors.IsNotFound(err):
			return nil, nil
		case apierrors.IsInvalid(err): // nobody can write this version
			return s, nil
		case !apierrors.IsConflict(err) && !c.lease.valid():
			return nil, err
		case !apierrors.IsConflict(err):
			c.log.Warn("a Service cannot be written yet, and no address is given until then", "service", pools.KeyOf(s),
				"error", err)
			pause(ctx, fencePause)
		}
		// Somebody else wrote it. That may have been the leader before: look again.
		current, err := c.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			c.log.Warn("a Service cannot be read yet, and no address is given until then", "service", pools.KeyOf(s),
				"error", err)
			pause(ctx, fencePause)
			continue
		}
		if s = current; !c.ours(s) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("take over Service %s: %w", pools.KeyOf(s), ctx.Err())
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
