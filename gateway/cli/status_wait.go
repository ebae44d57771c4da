package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// inForceInterval is the time between two requests of `sluice status --wait`.
const inForceInterval = 200 * time.Millisecond

// notInForceError has the parts of the configuration that are not in force at the end of the wait.
type notInForceError struct {
	timeout time.Duration
	parts   []string
}

// Error lists the parts, one on each line.
func (e *notInForceError) Error() string {
	return fmt.Sprintf("the configuration is not in force after %s:\n  %s", e.timeout, strings.Join(e.parts, "\n  "))
}

// lastAnswerTimeout bounds the request after the wait.
const lastAnswerTimeout = 4 * time.Second

// waitInForce sends requests until the configuration is in force. At the timeout it returns the
// last status with a notInForceError, or the error of a daemon that does not answer.
func waitInForce(outer context.Context, client *status.Client, timeout time.Duration) (status.StatusView, error) {
	ctx, cancel := context.WithTimeout(outer, timeout)
	defer cancel()
	var last status.StatusView
	var parts []string
	for {
		v, err := client.Status(ctx, true)
		switch {
		case err != nil && ctx.Err() != nil && parts != nil:
			return last, &notInForceError{timeout, parts}
		case errors.Is(err, context.DeadlineExceeded): // not everything is applied, or the daemon has stalled
			return lastAnswer(outer, client, timeout)
		case err != nil:
			return v, err
		}
		last, parts = v, notInForce(&v)
		if len(parts) == 0 {
			return v, nil
		}
		if !wake.After(ctx, inForceInterval) {
			return last, &notInForceError{timeout, parts}
		}
	}
}

// lastAnswer asks which parts are not in force, after a wait in which not everything was applied.
func lastAnswer(ctx context.Context, client *status.Client, timeout time.Duration) (status.StatusView, error) {
	ctx, cancel := context.WithTimeout(ctx, lastAnswerTimeout)
	defer cancel()
	v, err := client.Status(ctx, false)
	if err != nil {
		return v, err
	}
	parts := append(notInForce(&v), v.NotReady...)
	if len(parts) == 0 {
		parts = []string{"the configuration file, or objects that were read, took too long to be applied"}
	}
	return v, &notInForceError{timeout, parts}
}

// notInForce lists the parts of the configuration that the gateway has read but does not serve.
func notInForce(v *status.StatusView) (parts []string) {
	if v.Config.Error != "" {
		parts = append(parts, v.Config.File+" is rejected, and the last good version stays in force: "+v.Config.Error)
	}
	for _, change := range v.Config.NeedRestart {
		parts = append(parts, "a restart is needed: "+change)
	}
	if !v.Applied {
		parts = append(parts, "objects that were read are not applied yet")
	}
	for _, c := range v.Conditions {
		if c.Level != "ok" && (c.Name == status.DenyCondition || c.Name == status.ReadersCondition) {
			parts = append(parts, c.Name+": "+c.Detail)
		}
	}
	var directories []string // of manifests; objects of the API belong to tenants
	for _, s := range v.Sources {
		switch {
		case s.Error != "":
			parts = append(parts, s.Name+": "+s.Error)
		case !s.Synced:
			parts = append(parts, s.Name+" has not been read yet")
		}
		if directory, ok := strings.CutPrefix(s.Name, objects.Manifests+":"); ok {
			directories = append(directories, directory)
		}
	}
	for _, p := range v.Problems {
		path := strings.TrimPrefix(p.Source, objects.Manifests+":")
		in := func(directory string) bool { return strings.HasPrefix(path, strings.TrimSuffix(directory, "/")+"/") }
		if !p.Warning && slices.ContainsFunc(directories, in) {
			text := p.Source
			if about := strings.TrimSpace(p.Object + " " + p.Field); about != "" {
				text += ": " + about
			}
			parts = append(parts, text+": "+strings.Join(strings.Fields(p.Message), " "))
		}
	}
	return parts
}
