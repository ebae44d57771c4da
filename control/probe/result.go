package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"sluice.dev/sluice/control/endpointhealth"
)

// resultOf returns the result of a check of any kind. detail is the endpoint's answer if err is
// nil.
func resultOf(detail string, err error, took, timeout time.Duration) endpointhealth.Result {
	switch {
	case err == nil:
		return endpointhealth.Result{OK: true, Detail: detail, Took: took}
	case local(err):
		return endpointhealth.Result{NotMade: true, Detail: clip("not checked: " + err.Error())}
	}
	return endpointhealth.Result{Detail: explain(err, timeout), Took: took}
}

// errLocal: this process has no socket for a check.
var errLocal = errors.New("no socket")

// localErrors are errors of this host alone: it is out of descriptors, memory, buffers or source
// ports, or one of its rules forbids sending (EPERM by a netfilter rule or a control group's
// filter). ICMP errors, which concern the path or the endpoint, never map to one of these
// (icmp_err_convert, net/ipv4/icmp.c; tab_unreach, net/ipv6/icmp.c). EACCES is not in the list: the
// ICMP error of a router that prohibits the packet maps to it.
var localErrors = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
	syscall.EADDRNOTAVAIL, syscall.EAGAIN, syscall.EPERM}

// local reports whether an error means that this host could not make a check. Such an error has no
// bearing on the endpoint.
func local(err error) bool {
	var call *os.SyscallError
	if errors.Is(err, errLocal) || errors.As(err, &call) && call.Syscall == "socket" {
		return true
	}
	return slices.ContainsFunc(localErrors, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// silent reports whether an error means that nothing was answered. Any other error is an answer.
func silent(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, errNoAnswer) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// explain returns in short why a check failed.
func explain(err error, timeout time.Duration) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable: " + errno(err).Error()
	case silent(err):
		return fmt.Sprintf("no answer in %v", timeout)
	}
	return clip(err.Error())
}

// clip bounds a text that an endpoint may have written.
func clip(text string) string {
	const most = 120
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}

func errno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
