package xdpprog

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// explain turns a refusal of the kernel into what is missing. The verifier's
// rejection of a program carries the same errno as a missing capability, and may
// be due to one: only then is it not the program's or the kernel's fault.
func explain(err error) error {
	missing := missingCapabilities()
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) && len(rejected.Log) > 0 && missing == "" {
		return fmt.Errorf("this kernel's BPF verifier rejects the program; Sluice needs Linux 6.12 or later: %w", err)
	}
	switch none := withoutDescriptors(); {
	case none != nil: // package ebpf's feature tests take a program that cannot be loaded for a missing feature
		return fmt.Errorf("%w (LimitNOFILE= of the unit, or fs.file-max): %w", none, err)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if missing != "" {
			return fmt.Errorf("the process lacks %s: %w", missing, err)
		}
		return fmt.Errorf("refused although the capabilities are there; look for kernel lockdown, an LSM, or a user "+
			"namespace: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("this kernel does not know it; Sluice needs Linux 6.12 or later, with CONFIG_BPF_SYSCALL "+
			"and CONFIG_XDP_SOCKETS: %w", err)
	}
	return err
}

// withoutDescriptors returns EMFILE or ENFILE if no file can be opened.
func withoutDescriptors() error {
	f, err := os.Open(os.DevNull)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	return nil
}

// missingCapabilities names what loading and attaching needs and the thread has
// not (capabilities(7)). Without CAP_PERFMON the verifier allows no arithmetic on
// packet pointers. CAP_SYS_ADMIN stands for it and for CAP_BPF.
func missingCapabilities() string {
	has, err := capabilities()
	if err != nil {
		return ""
	}
	var missing []string
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_PERFMON")
	}
	return strings.Join(missing, ", ")
}

// capabilities returns which capabilities the thread has in effect.
func capabilities() (has func(c uint) bool, err error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	effective, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return func(c uint) bool { return effective>>c&1 != 0 }, err
}
