package fleet

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeKubectl is a kubectl with gateways on nodes a and b, and the pods of EXTRA. The name
// of a pod decides whether it fails, finds nothing or prints control characters.
const fakeKubectl = `#!/bin/sh
echo "$*" >> "$KUBECTL_LOG"
case "$*" in
*"no-server"*) echo 'E1129 20:08:23.538094    5301 memcache.go:265] "Unhandled Error"' >&2
   echo "The connection was refused" >&2; exit 1 ;;
*"get pods"*"only-a"*) echo '{"items":[{"metadata":{"name":"a-0","namespace":"s"},"spec":{"nodeName":"a","hostNetwork":true},"status":{"phase":"Running"}}]}' ;;
*"get pods"*) cat <<'PODS'
{"items":[
 {"metadata":{"name":"b-0","namespace":"s"},"spec":{"nodeName":"b","hostNetwork":true},"status":{"phase":"Running"}},
 {"metadata":{"name":"a-0","namespace":"s"},"spec":{"nodeName":"a","hostNetwork":true},"status":{"phase":"Running"}}
 EXTRA]}
PODS
;;
*"exec"*"a-0"*"support"*) echo packed; echo 'without log.txt: no journalctl' >&2 ;;
*"exec"*"support"*) echo packed; echo 'sluice: the gateway does not run' >&2; exit 1 ;;
*"logs"*) echo line ;;
*"exec"*"b-0"*"who"*) printf 'PROTO  CLIENT\ntcp    192.0.2.1:1\n' ;;
*"exec"*"who"*) echo '[]'; echo 'sluice: no flow had the source' >&2
   echo 'command terminated with exit code 3' >&2; exit 3 ;;
*"exec"*"c-0"*"doctor"*) printf 'LEVEL  CHECK\nfail   xdp\n'; echo "sluice: 1 check failed" >&2; exit 1 ;;
*"exec"*"d-0"*"doctor"*) printf 'LEVEL  CHECK\n\npart\033[2J of' ; echo "sluice: killed" >&2; exit 137 ;;
*"exec"*"doctor"*) printf 'LEVEL  CHECK\nok     xdp\n' ;;
*"exec"*"d-0"*json*) echo 'panic: no JSON' ;;
*"exec"*"c-0"*json*) echo '{"name":"z"}'; exit 1 ;;
*"exec"*"a-0"*"drops"*) echo 'No packet was dropped in the last 1m0s.' >&2 ;;
*"exec"*"b-0"*"drops"*) printf 'REASON   PACKETS\nno_flow  3\n' ;;
*"exec"*"a-0"*json*) echo '[{"name":"x","flows":1}]' ;;
*"exec"*"b-0"*json*) echo '[{"name":"y","flows":2}]' ;;
*"exec"*"a-0"*) printf 'SERVICE  FLOWS\ndemo/echo  1\n' ;;
*"exec"*"b-0"*) printf 'SERVICE         FLOWS\ndemo/long-name  -\n' ;;
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

const pending = `,{"metadata":{"name":"c-0","namespace":"s"},"spec":{"nodeName":"c","hostNetwork":true},"status":{"phase":"Pending"}}`

// running is a further pod.
func running(name, namespace, node, more string) string {
	return `,{"metadata":{"name":"` + name + `","namespace":"` + namespace + `"},"spec":{"nodeName":"` + node +
		`"` + more + `},"status":{"phase":"Running"}}`
}

const onHost = `,"hostNetwork":true`

// TestForeignPods: a pod of a tenant with the labels of a gateway gets no command. A pod that is
// not on the host's network is none; where others are in several namespaces, the user names one.
func TestForeignPods(t *testing.T) {
	code, out, errs, log := fleet(t, running("x-0", "tenant", "a", ""), "services")
	if code != 0 || errs != "" || strings.Contains(log, "x-0") || !strings.Contains(out, "demo/echo") {
		t.Errorf("not on the host's network: exit %d, %s\n%s\nkubectl got:\n%s", code, errs, out, log)
	}
	code, _, errs, log = fleet(t, running("x-0", "tenant", "a", onHost), "deny", "192.0.2.1")
	if code != 1 || strings.Contains(log, "exec") || !strings.Contains(errs, "with -n: s, tenant") {
		t.Errorf("two namespaces: exit %d, %s\nkubectl got:\n%s", code, errs, log)
	}
}

// TestChoose: of an update's two pods on a node the newest ready one is asked, and the other one is
// named. Pods of two controllers are two gateways.
func TestChoose(t *testing.T) {
	pods := func(names ...string) (list []pod) {
		for i, name := range names { // node-owner-flags: Ready, Ending, Pending
			node, rest, _ := strings.Cut(name, "-")
			owner, flags, _ := strings.Cut(rest, "-")
			var p pod
			p.Metadata.Name, p.Spec.NodeName, p.Status.Phase = name, node, "Running"
			p.Metadata.OwnerReferences = append(p.Metadata.OwnerReferences, struct{ UID string }{owner})
			p.Metadata.CreationTimestamp = time.Unix(int64(i), 0)
			if strings.Contains(flags, "R") {
				p.Status.Conditions = append(p.Status.Conditions, struct{ Type, Status string }{"Ready", "True"})
			}
			if strings.Contains(flags, "E") {
				p.Metadata.DeletionTimestamp = &time.Time{}
			}
			if strings.Contains(flags, "P") {
				p.Status.Phase = "Pending"
			}
			list = append(list, p)
		}
		return list
	}
	for _, c := range []struct{ name, pods, want string }{
		{"the new one waits", "n-x-R n-x-", "n n-x-R [n-x-]"},
		{"the new one has taken over", "n-x-R1 n-x-R2", "n n-x-R2 [n-x-R1]"},
		{"the old one ends", "n-x-RE n-x-R", "n n-x-R [n-x-RE]"},
		{"the new one does not run", "n-x-RE n-x-P", "n n-x-RE [n-x-P]"},
		{"two controllers", "n-x-R n-y-R", "n/n-x-R n-x-R [], n/n-y-R n-y-R []"},
	} {
		var got []string
		for _, g := range choose(pods(strings.Fields(c.pods)...)) {
			got = append(got, fmt.Sprint(g.Node, " ", g.Pod, " ", g.Others))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %s, want %s", c.name, strings.Join(got, ", "), c.want)
		}
	}
	second := running("b-1", "s", "b", onHost+`}, "metadata":{"name":"b-1","namespace":"s","ownerReferences":[{"uid":"o"}]`)
	_, _, errs, _ := fleet(t, second+strings.ReplaceAll(second, "b-1", "b-2"), "services")
	if !strings.Contains(errs, "b/b-1: pod b-1 is asked, not b-2") {
		t.Errorf("the other pod is not named: %s", errs)
	}
}

// TestFailuresArePrinted: what a gateway printed before it failed is printed, made printable, and
// does not change the form of the others' answers.
func TestFailuresArePrinted(t *testing.T) {
	bad := running("c-0", "s", "c", onHost) + running("d-0", "s", "d", onHost)
	code, out, errs, _ := fleet(t, bad, "doctor")
	const want = "GATEWAY  LEVEL  CHECK\na        ok     xdp\nb        ok     xdp\nc        fail   xdp\n" +
		"d  LEVEL  CHECK\nd  \nd  part [2J of\n"
	if code != 1 || out != want || !strings.Contains(errs, "c: 1 check failed\n  d: killed") {
		t.Errorf("exit %d, %s\n%s\nwant\n%s", code, errs, out, want)
	}
	code, out, errs, _ = fleet(t, bad, "services", "-o", "yaml")
	if code != 1 || !strings.Contains(out, "name: x") || !strings.Contains(out, "gateway: c\n  name: z") ||
		!strings.Contains(errs, "c: exit code 1\n  d: its answer is not JSON") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
}

// TestLongAnswer: an answer is kept up to a bound, at the end of a line, and the cut is named.
func TestLongAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nprintf 'line 1\\nline 2\\nline 3\\n'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]string{17: "line 1\nline 2\n", 21: "line 1\nline 2\nline 3\n"} {
		k := kubectl{program: path, most: most}
		a := k.ask(t.Context(), make([]gateway, 1), "sluice", time.Minute, nil)[0]
		if cut := a.err != nil && strings.Contains(a.err.Error(), "more than 17 bytes"); string(a.out) != want ||
			cut != (most == 17) {
			t.Errorf("%d bytes: %q, %v", most, a.out, a.err)
		}
	}
}

// TestNone: a gateway that has found nothing has not failed, and one that has found it is enough.
func TestNone(t *testing.T) {
	code, out, errs, _ := fleet(t, "", "who", "10.0.1.2:21360")
	if code != 0 || !strings.Contains(out, "b        tcp    192.0.2.1:1") || errs != "a: no flow had the source\n" {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	code, _, errs, _ = fleet(t, pending, "who", "10.0.1.2:21360")
	if code != 1 || !strings.Contains(errs, "c: pod c-0 is Pending") {
		t.Errorf("with a failure: exit %d, %s", code, errs)
	}
	code, _, errs, _ = fleet(t, "", "-l", "only-a", "who", "10.0.1.2:21360")
	if code != 3 || !strings.Contains(errs, "a: no flow had the source\nkubectl sluice: no gateway had a flow") {
		t.Errorf("nobody: exit %d, %s", code, errs)
	}
}

// TestSupport: notes of each gateway are printed, and a daemon that does not answer is a failure.
func TestSupport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar.gz")
	code, out, errs, _ := fleet(t, "", "support", "--file", file)
	const want = "a: without log.txt: no journalctl\nkubectl sluice: parts are not complete:\n" +
		"  b.tar.gz is not complete: the gateway does not run\n"
	if code != 1 || out != file+": 2 gateways\n" || errs != want {
		t.Errorf("exit %d, %s\n%s", code, out, errs)
	}
}

// TestMerge: rows of all gateways are one table or list.
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
		"--context=prod exec --namespace s b-0 --container sluice -- sluice services demo/echo -o json") {
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
