package allocate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/wake"
)

// fence writes every Service of this controller, so that no write of a previous leader can succeed,
// and returns all Services as they are after that. It does not change their addresses. It skips a
// Service that the API server refuses to write for too long (unwritable).
func (c *controller) fence(ctx context.Context, services []*corev1.Service) ([]*corev1.Service, error) {
	list := make([]*corev1.Service, len(services))
	errs := make([]error, len(services))
	deadline := time.Now().Add(c.fenceTimeout)
	workqueue.ParallelizeUntil(ctx, c.config.Workers, len(services), func(i int) {
		if list[i] = services[i]; c.ours(services[i]) {
			list[i], errs[i] = c.fenceOne(ctx, services[i], deadline)
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

const (
	// fencePause is the pause between two attempts.
	fencePause = 500 * time.Millisecond
	// fenceTimeout is how long the fence retries a Service that the API server refuses to write.
	fenceTimeout = 30 * time.Second
)

// unwritable reports whether a working API server refused to write this Service for a reason that
// its author can cause: it is too large, or a policy denies it. If the fence waited for such
// Services, one author could keep everybody without an address.
func unwritable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout:
		return false
	}
	return true
}

// fenceOne returns a Service as written, or nil if it was deleted.
func (c *controller) fenceOne(ctx context.Context, s *corev1.Service, deadline time.Time) (*corev1.Service, error) {
	for try := 1; ctx.Err() == nil; try++ {
		after, err := c.update(ctx, marked(s, c.config.Identity))
		switch {
		case err == nil:
			return after, nil
		case apierrors.IsNotFound(err):
			return nil, nil
		case apierrors.IsInvalid(err): // no leader can write this version
			return s, nil
		case !apierrors.IsConflict(err) && !c.lease.valid():
			return nil, err
		case unwritable(err) && !apierrors.IsConflict(err) && try > 1 && !time.Now().Before(deadline):
			c.unfenced.Store(true)
			c.log.Error("a Service cannot be written and is skipped: if the previous leader was suspended, its late "+
				"write may still give this Service an address, which is then replaced",
				"service", pools.KeyOf(s), "error", err)
			return s, nil
		case !apierrors.IsConflict(err):
			c.log.Warn("a Service cannot be written yet, and no address is given until then", "service", pools.KeyOf(s),
				"error", err)
			wake.After(ctx, fencePause)
		}
		// Another client wrote the Service, perhaps the previous leader: read it again.
		current, err := c.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			c.log.Warn("a Service cannot be read yet, and no address is given until then", "service", pools.KeyOf(s),
				"error", err)
			wake.After(ctx, fencePause)
			continue
		}
		if s = current; !c.ours(s) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("take over Service %s: %w", pools.KeyOf(s), ctx.Err())
}
