package fleet

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKubectl is a kubectl with gateways on nodes a and b, and the pods of EXTRA. Node b has
// a second, newer pod.
const fakeKubectl = `#!/bin/sh
echo "$*" >> "$KUBECTL_LOG"
case "$*" in
*"no-server"*) echo 'E1129 20:08:23.538094    5301 memcache.go:265] "Unhandled Error"' >&2
   echo "The connection was refused" >&2; exit 1 ;;
*"get pods"*) cat <<'PODS'
{"items":[
 {"metadata":{"name":"b-new","namespace":"s","creationTimestamp":"2026-01-02T00:00:00Z"},"spec":{"nodeName":"b"},"status":{"phase":"Running"}},
 {"metadata":{"name":"b-old","namespace":"s","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"b"},"status":{"phase":"Running"}},
 {"metadata":{"name":"a-0","namespace":"s","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"a"},"status":{"phase":"Running"}}
 EXTRA]}
PODS
;;
*"exec"*"a-0"*"drops"*) echo 'No packet was dropped in the last 1m0s.' >&2 ;;
*"exec"*"b-old"*"drops"*) printf 'REASON   PACKETS\nno_flow  3\n' ;;
*"exec"*"a-0"*json*) echo '[{"name":"x","flows":1}]' ;;
*"exec"*"b-old"*json*) echo '[{"name":"y","flows":2}]' ;;
*"exec"*"a-0"*) printf 'SERVICE  FLOWS\ndemo/echo  1\n' ;;
*"exec"*"b-old"*) printf 'SERVICE         FLOWS\ndemo/long-name  -\n' ;;
*) echo "sluice: asked $*" >&2; exit 1 ;;
esac
`

func fleet(t *testing.T, extra string, args ...string) (code int, out, errs, log string) {
	t.Helper()
	dir := t.TempDir()
	script := strings.ReplaceAll(fakeKubectl, "EXTRA", extra)
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("KUBECTL_LOG", filepath.Join(dir, "log"))
	var o, e bytes.Buffer
	code = Main(t.Context(), "v1", args, &o, &e)
	text, _ := os.ReadFile(filepath.Join(dir, "log")) // missing where kubectl did not run
	return code, o.String(), e.String(), string(text)
}

const pending = `,{"metadata":{"name":"c-0","namespace":"s"},"spec":{"nodeName":"c"},"status":{"phase":"Pending"}}`

// TestMerge: rows of all gateways are one table or list, and the older pod of a node is asked.
func TestMerge(t *testing.T) {
	code, out, errs, _ := fleet(t, "", "services")
	want := "GATEWAY  SERVICE         FLOWS\na        demo/echo       1\nb        demo/long-name  -\n"
	if code != 0 || errs != "" || out != want {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	code, out, errs, log := fleet(t, "", "--context", "prod", "-n", "s", "services", "demo/echo", "-o", "yaml")
	want = "- flows: 1\n  gateway: a\n  name: x\n- flows: 2\n  gateway: b\n  name: \"y\"\n"
	if code != 0 || errs != "" || out != want {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	if !strings.Contains(log,
		"--context=prod exec --namespace s b-old --container sluice -- sluice services demo/echo -o json") {
		t.Errorf("kubectl got:\n%s", log)
	}
}

// TestNotes: notes of a gateway's command are printed with its name.
func TestNotes(t *testing.T) {
	code, out, errs, _ := fleet(t, "", "drops")
	const want, note = "GATEWAY  REASON   PACKETS\nb        no_flow  3\n",
		"a: No packet was dropped in the last 1m0s.\n"
	if code != 0 || out != want || errs != note {
		t.Errorf("exit %d, %q\n%s", code, errs, out)
	}
}

// TestOneGatewayFails: the others are printed, the one that does not answer is named, and the exit
// status is 1.
func TestOneGatewayFails(t *testing.T) {
	code, out, errs, _ := fleet(t, pending, "services")
	if code != 1 || !strings.Contains(out, "demo/long-name") || !strings.Contains(errs, "1 of 3 gateways failed") ||
		!strings.Contains(errs, "c: pod c-0 is Pending") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	code, _, errs, _ = fleet(t, "", "--context", "no-server", "stats")
	const want = "kubectl sluice: list the gateways' pods: The connection was refused\n"
	if code != 1 || errs != want {
		t.Errorf("exit %d, %q, want %q", code, errs, want)
	}
}

// TestUsage: commands without an end, unknown ones and unknown formats never reach a cluster.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"run"}, {"events", "-f"}, {"services", "-o", "xml"}, {"services", "-o"}} {
		if code, _, errs, log := fleet(t, "", args...); code != 2 || log != "" {
			t.Errorf("%v: exit %d, %s, kubectl got %q", args, code, errs, log)
		}
	}
	for _, c := range []struct{ want, args string }{
		{"did you mean doctor?", "docter"}, {"did you mean support?", "supprt"},
		{"did you mean json?", "services -o jsn"}, {"did you mean --namespace?", "--namespce x status"},
	} {
		if code, _, errs, _ := fleet(t, "", strings.Fields(c.args)...); code != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %s, want %q", c.args, code, errs, c.want)
		}
	}
}
