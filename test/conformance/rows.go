package conformance

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// toBeDeleted is the taint that the cluster autoscaler puts on a Node before it deletes
// it (KEP-3836).
var toBeDeleted = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}

// document is where the rows are.
const document = "../../docs/kubernetes.md"

// prose is rows for statements of the document outside of tables, for kube-proxy's treatment of
// existing flows (pkg/proxy/conntrack/cleanup.go) and for its health servers
// (pkg/proxy/healthcheck).
var prose = []string{
	"Whose address/a client that is the very endpoint it got",
	"Not settled anywhere/two Services that claim one frontend",
	"Not settled anywhere/SCTP flows of removed endpoints",
	"Not settled anywhere/an address that one Service lists in several ways",
	"Affinity/the client's address and the service port",
	"Affinity/two ports of a Service do not share it",
	"Affinity/a new endpoint",
	"Affinity/a backend that leaves",
	"Affinity/a backend that comes back",
	"Affinity/timeoutSeconds",
	"Affinity/each new flow starts the time anew",
	"Established flows/endpoint added",
	"Established flows/policy, range, affinity, hint change",
	"Established flows/endpoint terminating, serving",
	"Established flows/endpoint not serving",
	"Established flows/endpoint removed",
	"Established flows/target port changed",
	"Established flows/service goes to zero endpoints",
	"Established flows/zero to first endpoint",
	"Established flows/service port, node port or VIP changed",
	"Established flows/service deleted",
	"On the wire/VLAN tags",
	"On the wire/fragments",
	"On the wire/ICMP errors about flows",
	"Health/healthCheckNodePort counts local ready addresses",
	"Health/each family counts its own",
	"Health/the port comes and goes with the Service",
	"Health//healthz and /livez of the node",
}

// limitTests are the tests that show the limits.
const limitTests = "fastpath, TestLimits; test/e2e, TestConnectionLimit and TestRateLimit"

// elsewhere is rows that no case shows, each with what shows it.
var elsewhere = map[string]string{
	"Service/annotations sluice.dev/limit-*": limitTests,
	"Service/annotation sluice.dev/health-check": "test/e2e, TestCheckedEndpoint, TestFlowsOutliveTheirCheck, " +
		"TestAllChecksFail; kube-proxy checks no endpoint",
	"Service/annotation sluice.dev/proxy-protocol, and annotations of clouds": "test/e2e, TestProxyProtocol; " +
		"kube-proxy writes no header",
	"Service/annotation sluice.dev/forwarding: direct":   "test/e2e, TestDirectReturn; kube-proxy has no direct return",
	"Service/annotation sluice.dev/forwarding: routed":   "test/e2e, TestRouted; kube-proxy masquerades policy Cluster",
	"Limits/sluice.dev/limit-connections":                limitTests,
	"Limits/sluice.dev/limit-connections-per-source":     limitTests,
	"Limits/sluice.dev/limit-new-connections":            limitTests,
	"Limits/sluice.dev/limit-new-connections-per-source": limitTests,
	"Different on purpose/An external IP that is an address of the node": "test/e2e, " +
		"TestTenantTakesNothingOfTheNode, on an API server of its own; Service/externalIPs here allows the address",
	"Different on purpose/An endpoint at a port of the node itself": "test/e2e, TestHostPortsAreDenied",
	"Different on purpose/UDP flows follow their frontend":          "test/e2e, TestUDPFollowsItsFrontend",
	"Different on purpose/Manifests": "an API server adds what manifests may leave out; " +
		"control/compiler/testdata/malformed.txtar",
}

// sections are the tables' names in row names, where they are shorter.
var sections = map[string]string{"Whose address the endpoint sees": "Whose address"}

var bullet = regexp.MustCompile(`^- \*\*(.+?)\.?\*\*`)

// rows reads the document's rows: the first column of its tables and its bold bullets.
func rows(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	var all []string
	section, inTable := "", false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
			if short, ok := sections[title]; ok {
				section = short
			}
			continue
		}
		if m := bullet.FindStringSubmatch(line); m != nil {
			all = append(all, section+"/"+strings.ReplaceAll(m[1], "`", ""))
		}
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.TrimSpace(cells[0]) != "" {
			inTable = false
			continue
		}
		first := strings.ReplaceAll(strings.TrimSpace(cells[1]), "`", "")
		if inTable && !strings.HasPrefix(first, "---") {
			all = append(all, section+"/"+first)
		}
		inTable = true // the line after a table's head
	}
	return all, nil
}
