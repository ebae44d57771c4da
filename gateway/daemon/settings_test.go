package daemon

import (
	"encoding"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/host/nic/devices"
)

// TestSettingsOfFlows: docs/operations.md has a row for each setting, and for nothing else. It says
// that a hand-over is refused of exactly the settings that are compared.
func TestSettingsOfFlows(t *testing.T) {
	rows := settingRows(t)
	seen := map[string]bool{}
	eachSetting(t, func(path string, changed *config.Configuration) {
		seen[path] = true
		row, documented := rows[path]
		if !documented {
			t.Errorf("%s: the table of docs/operations.md has no row for it", path)
			return
		}
		refused := !slices.Equal(factsOf(t, config.Default()), factsOf(t, changed))
		if told := strings.HasPrefix(row, "refused"); told != refused && path != "stateDir" {
			t.Errorf("%s: by the table a hand-over is %q, and the facts differ: %v", path, row, refused)
		}
	})
	for path := range rows {
		if !seen[path] {
			t.Errorf("%s: the table of docs/operations.md has a row for it, and it is no setting", path)
		}
	}
}

// settingRows returns what the table says of a hand-over, by setting.
func settingRows(t *testing.T) map[string]string {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| settings | effect on a live flow | hand-over | start |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("docs/operations.md has no table of settings")
	}
	rows := map[string]string{}
	for _, line := range strings.Split(table, "\n")[1:] {
		cells := strings.Split(line, " | ")
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			if _, twice := rows[name[1]]; twice {
				t.Errorf("%s has two rows", name[1])
			}
			rows[name[1]] = cells[2]
		}
	}
	return rows
}

// factsOf returns the facts of a process, on a machine that has its interfaces.
func factsOf(t *testing.T, c *config.Configuration) (list []string) {
	t.Helper()
	var found []devices.Device
	for _, f := range c.Interfaces {
		found = append(found, devices.Device{Name: f.Name, Queues: 4})
	}
	if len(found) == 0 {
		c.Interfaces = []config.Interface{{Name: "nic0"}}
		found = []devices.Device{{Name: "nic0", Queues: 4}}
	}
	plan, err := devices.NewPlan(found, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts(c, int(c.Tuning.FrameSize), &plan, flows.Layout(c)) {
		list = append(list, f.What+" "+f.Is)
	}
	return list
}

// eachSetting calls f for each field of the configuration with one in which it alone is another.
func eachSetting(t *testing.T, f func(path string, changed *config.Configuration)) {
	var walk func(v func(*config.Configuration) reflect.Value)
	walk = func(at func(*config.Configuration) reflect.Value) {
		c := config.Default()
		v := at(c)
		if _, text := v.Addr().Interface().(encoding.TextUnmarshaler); v.Kind() == reflect.Struct && !text {
			for i := range v.NumField() {
				walk(func(c *config.Configuration) reflect.Value { return at(c).Field(i) })
			}
			return
		}
		change(t, v)
		changes := config.Default().Diff(c)
		if len(changes) != 1 {
			t.Fatalf("%v: %d changes", v.Type(), len(changes))
		}
		f(changes[0].Path, c)
	}
	walk(func(c *config.Configuration) reflect.Value { return reflect.ValueOf(c).Elem() })
}

// change gives a field another value, valid or not.
func change(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64, reflect.Uint16, reflect.Int32:
		if v.CanUint() {
			v.SetUint(v.Uint() + 1)
		} else {
			v.SetInt(v.Int() + 1)
		}
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
	case reflect.Struct:
		change(t, v.Field(0))
	default:
		t.Fatalf("a field of type %v: say here how it changes", v.Type())
	}
}
