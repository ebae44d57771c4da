package napi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var all = Settings{DeferHardIRQs: 3, FlushTimeout: 50 * time.Microsecond, Threaded: On}

// TestZeroSettings: without settings nothing is opened, read or written.
func TestZeroSettings(t *testing.T) {
	d, err := Apply("no-such-device", 1, Settings{}, nil)
	must(t, err)
	must(t, d.Restore())
}

// TestRefused: Refused names the kernel, driver or container that prevents a setting, and the other
// settings are made.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name      string
		attribute string
		read      error
		write     error
		say       string
	}{
		{"old kernel", attrThreaded, unix.ENOENT, nil,
			"threaded of eth0 cannot be set to 1: this kernel does not have it (Linux 5.12)"},
		{"container", attrDefer, nil, unix.EROFS,
			"napi_defer_hard_irqs of eth0 cannot be set to 3: /sys is read-only here"},
		{"no capability", attrTimeout, nil, unix.EPERM, "CAP_NET_ADMIN"},
		{"no NAPI", attrThreaded, nil, unix.EOPNOTSUPP, "the driver has no NAPI"},
		{"other", attrThreaded, nil, unix.EIO, "input/output error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{values: map[string]string{attrDefer: "0", attrTimeout: "0", attrThreaded: "0"},
				at: test.attribute, readErr: test.read, writeErr: test.write}
			d := apply(f, "eth0", 1, all, nil)
			if refused := strings.Join(d.Refused(), "\n"); len(d.Refused()) != 1 ||
				!strings.Contains(refused, test.say) {
				t.Errorf("refused %q, want %q", refused, test.say)
			}
			set := 0
			for a, v := range f.values {
				if v != "0" && a != test.attribute {
					set++
				}
			}
			if set != 2 || len(d.Values()) != 2 {
				t.Errorf("the others are %v, we say %v", f.values, d.Values())
			}
		})
	}
}

// TestRestoreFails: values that could not be restored stay in the file.
func TestRestoreFails(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "napi.json")
	f := &fake{values: map[string]string{attrDefer: "1", attrTimeout: "2", attrThreaded: "0"}}
	d := apply(f, "eth0", 1, all, open(t, memory))
	f.at, f.writeErr = attrTimeout, unix.EIO
	if err := d.Restore(); err == nil || !strings.Contains(err.Error(), "restore gro_flush_timeout of eth0 to 2") {
		t.Errorf("Restore: %v", err)
	}
	if v, found := open(t, memory).Get("eth0", 1); !found || v[attrTimeout] != "2" {
		t.Errorf("forgotten: %v", v)
	}
}

func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "napi.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := OpenOriginal(path); err == nil {
		t.Error("a damaged file was read")
	}
}

// TestOriginalOfAnotherVersion: NICs must not be restored from a file with fields of unknown
// meaning.
func TestOriginalOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "napi.json")
	must(t, os.WriteFile(path, []byte(`{"eth0": {"boot": "b", "ifindex": 1, "settings": {"a": "1"}}}`), 0o600))
	if _, err := OpenOriginal(path); err == nil || !strings.Contains(err.Error(), `unknown field "settings"`) {
		t.Errorf("%v, want the field to be refused", err)
	}
}

// TestEmptyFile: a machine that crashes directly after the file was created may leave it empty. The
// devices have lost the changed settings in the same crash, and the gateway must start.
func TestEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "napi.json")
	must(t, os.WriteFile(path, nil, 0o600))
	if _, found := open(t, path).Get("eth0", 1); found {
		t.Error("something was found in an empty file")
	}
}

type fake struct {
	values            map[string]string
	at                string
	readErr, writeErr error
}

func (f *fake) read(a string) (string, error) {
	if a == f.at && f.readErr != nil {
		return "", f.readErr
	}
	return f.values[a], nil
}

func (f *fake) write(a, v string) error {
	if a == f.at && f.writeErr != nil {
		return f.writeErr
	}
	f.values[a] = v
	return nil
}

func (f *fake) close() error { return nil }

func open(t *testing.T, path string) *Original {
	t.Helper()
	o, err := OpenOriginal(path)
	must(t, err)
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
