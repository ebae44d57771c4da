package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzConfig takes its input as a whole file and as the rest of a valid one, which
// gets deeper. No input panics; a refused one says what is wrong with a field or the
// file; an accepted one is valid, prints, and reads back to the same value.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(minimal))
	everything, err := os.ReadFile(filepath.Join("testdata", "everything.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	for _, line := range bytes.Split(everything, []byte("\n")) {
		f.Add(line) // small inputs mutate well
	}
	f.Add(
		[]byte(
			`{"apiVersion":"sluice.dev/v1alpha1","kind":"GatewayConfiguration","interfaces":[{"name":"e"}],"maglev":{"seed":"yes"}}`,
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		judge(t, data)
		judge(t, append([]byte(minimal), data...))
	})
}

func judge(t *testing.T, data []byte) {
	c, err := ParseFile("f", data)
	if err != nil {
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 || c != nil {
			t.Fatalf("refused with %T %v and %v", err, err, c)
		}
		for _, e := range errs {
			if e.Problem == "" || e.File != "f" ||
				(strings.Contains(e.Problem, "%!") && !bytes.Contains(data, []byte("%!"))) {
				t.Errorf("a message says nothing: %+v", e)
			}
		}
		return
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("accepted but not valid: %v", err)
	}
	printed, err := c.YAML()
	if err != nil {
		t.Fatalf("does not print: %v", err)
	}
	if err := refusal(t, printed); err != nil {
		t.Fatalf("the schema refuses an accepted file: %v\n%s", err, printed)
	}
	again, err := Parse(printed)
	if err != nil {
		t.Fatalf("its own print is refused: %v\n%s", err, printed)
	}
	if !reflect.DeepEqual(c, again) {
		t.Fatalf("its own print reads differently:\n%s\n%s", printed, difference(c, again))
	}
}
