package compiler_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// mutator changes fields of a good object, of any type and at any depth, to what such a
// field must not, can hardly or might just hold. It knows by a field's name which words
// mean something there.
type mutator struct {
	world
	huge int // lists that were made long
}

// What is written where names end with the key. A field that has none gets any.
var words = map[string][]string{
	"address": {
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1",
		"169.254.169.254",
		"::", "::1", "fe80::1", "fe80::1%eth0", "febf::1", "ff02::1", "ff0e::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1",
		"::192.0.2.1", "64:ff9b::a00:1",
		"10.0.0.1", "010.000.000.001", "10.0.0.256", "10.0.0", "10.0.0.1.", " 10.0.0.1", "10.0.0.1\n", "10.0.0.1:80",
		"0x0a000001", "167772161", "10.0.0.1/32",
		"192.0.2.10", "192.0.2.20", "203.0.113.1", "203.0.113.200", "203.0.113.202", "2001:db8:f::200", "10.96.0.201",
		"2001:db8::1", "2001:DB8:0:0::0001", "[2001:db8::1]", "None", "none", "example.org",
	},
	"range": {
		"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "10.0.0.0", "/",
		"2001:db8::/129", "2001:db8::/32", "::ffff:10.0.0.0/104",
		"127.0.0.0/8", "224.0.0.0/4", " 10.0.0.0/8 ", "10.0.0.0/8,10.1.0.0/16", "bad", "bad:/8", "",
	},
	"protocol": {"TCP", "UDP", "SCTP", "tcp", "ICMP", "", "TCP ", "6"},
	"policy":   {"Cluster", "Local", "local", "", "Global", "PreferClose"},
	"type": {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "", "IPv4", "IPv6", "FQDN", "ipv4", "VIP",
		"Proxy", "InternalIP", "ExternalIP", "Hostname"},
	"family":   {"IPv4", "IPv6", "IPv5", "", "ipv4"},
	"affinity": {"None", "ClientIP", "clientip", ""},
	"name": {
		"a", "b", "c", "svc-1", "svc-2", "default", "other", "gw-1", "gw-2", "", ".", "..", "a.b", "A", "-", "a-",
		"a_b", "a/b", "../../etc", "a\x00b", "a\nb", "a\u2028b", "\x1b[2J",
		"\xff\xfe", "ä", "日本語", "\u202egnp.exe", "🦆", strings.Repeat("a", 63), strings.Repeat("a", 64),
		strings.Repeat("a", 254), strings.Repeat("é", 4000),
	},
	"key": {
		"kubernetes.io/service-name", "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless",
		"sluice.dev/scheduler", "sluice.dev/weights",
		"topology.kubernetes.io/zone", "endpoints.kubernetes.io/last-change-trigger-time",
		"service.kubernetes.io/topology-mode", "", "x",
	},
	"value": {
		"svc-1", "svc-2", "svc-3", "maglev", "rr", "wrr", "lc", "sed", "nq", "random", "MAGLEV", "10.0.0.0/8=0",
		"10.0.0.1=65535,10.0.0.2=65536", "0.0.0.0/0=-1", "node:gw-1=5,zone:a=0", "=", ",,,", "10.0.0.0/8=1e9",
		"zone:=1", strings.Repeat("10.0.0.1=1,", 2000), "a", "b", "2026-01-01T00:00:00Z", "9999-99-99T99:99:99Z",
		"true", "", "\x00", "日本語",
	},
}

// wordsOf chooses by the name of a field, and now and then does not.
func (m *mutator) wordsOf(field string) []string {
	field = strings.ToLower(field)
	kind := ""
	switch {
	case strings.HasSuffix(field, "ip"), strings.HasSuffix(field, "ips"), strings.HasSuffix(field, "addresses"),
		field == "address":
		kind = "address"
	case strings.HasSuffix(field, "ranges"):
		kind = "range"
	case strings.HasSuffix(field, "families"):
		kind = "family"
	case strings.HasSuffix(field, "policy"), strings.HasSuffix(field, "affinity"), strings.HasSuffix(field, "protocol"),
		strings.HasSuffix(field, "type"):
		for name := range words {
			if strings.HasSuffix(field, name) {
				kind = name
			}
		}
	case strings.HasSuffix(field, "name"), strings.HasSuffix(field, "namespace"), field == "zone":
		kind = "name"
	case field == "key", field == "value":
		kind = field
	}
	if kind == "" || m.chance(10) {
		kinds := []string{"address", "affinity", "family", "key", "name", "policy", "protocol", "range", "type",
			"value"}
		kind = kinds[m.one(len(kinds))]
	}
	return words[kind]
}

// roots are the parts of an object that it changes: those that something is read from.
func roots(o runtime.Object) map[string]any {
	switch o := o.(type) {
	case *corev1.Service:
		return map[string]any{
			"name": &o.Name, "namespace": &o.Namespace, "labels": &o.Labels, "annotations": &o.Annotations,
			"created": &o.CreationTimestamp, "uid": &o.UID,
			"spec": &o.Spec, "spec again": &o.Spec, "ports": &o.Spec.Ports, "clusterIPs": &o.Spec.ClusterIPs,
			"externalIPs":              &o.Spec.ExternalIPs,
			"loadBalancerSourceRanges": &o.Spec.LoadBalancerSourceRanges, "ingress": &o.Status.LoadBalancer.Ingress,
			"families": &o.Spec.IPFamilies,
		}
	case *discoveryv1.EndpointSlice:
		return map[string]any{
			"name": &o.Name, "namespace": &o.Namespace, "labels": &o.Labels, "annotations": &o.Annotations,
			"addressType": &o.AddressType,
			"ports":       &o.Ports, "endpoints": &o.Endpoints, "endpoints again": &o.Endpoints,
			"endpoints once more": &o.Endpoints,
		}
	case *corev1.Node:
		return map[string]any{"name": &o.Name, "labels": &o.Labels, "taints": &o.Spec.Taints,
			"addresses": &o.Status.Addresses, "deleted": &o.DeletionTimestamp}
	}
	panic(fmt.Sprintf("mutate %T", o))
}

// mutate changes one to four things.
func (m *mutator) mutate(o runtime.Object) {
	all := roots(o)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names) // so that a seed says everything
	for range 1 + m.one(4) {
		name := names[m.one(len(names))]
		m.change(name, reflect.ValueOf(all[name]).Elem())
	}
}

func (m *mutator) change(field string, v reflect.Value) {
	if t, ok := v.Addr().Interface().(*metav1.Time); ok {
		// Never as old as the good objects: age decides who has a frontend.
		*t = metav1.NewTime(time.Unix([]int64{2, 3, math.MaxInt32, 1 << 40}[m.one(4)], int64(m.one(2))))
		if m.chance(30) {
			*t = metav1.Time{}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		} else if m.chance(30) {
			v.SetZero()
			return
		}
		m.change(field, v.Elem())
	case reflect.Struct:
		at := m.one(v.NumField())
		if v.Field(at).CanSet() {
			m.change(v.Type().Field(at).Name, v.Field(at))
		}
	case reflect.Slice:
		m.changeList(field, v)
	case reflect.Map:
		m.changeMap(v)
	case reflect.String:
		v.SetString(m.text(field, v.String()))
	case reflect.Int32, reflect.Int64:
		numbers := []int64{0, 1, 2, 80, 81, 8080, 30000, 30001, 32100, 31100, 65535, 65536, -1, 131152, math.MaxInt32,
			math.MinInt32, 86400, 86401}
		v.SetInt(numbers[m.one(len(numbers))])
	case reflect.Bool:
		v.SetBool(!v.Bool())
	}
}

func (m *mutator) changeList(field string, v reflect.Value) {
	n := v.Len()
	if n == 0 || m.chance(15) {
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		m.change(field, v.Index(n))
		return
	}
	at := m.one(n)
	switch m.one(12) {
	case 0:
		v.SetZero()
	case 1:
		v.Set(reflect.AppendSlice(v.Slice(0, at), v.Slice(at+1, n)))
	case 2: // twice the same
		v.Set(reflect.Append(v, v.Index(at)))
	case 3:
		reflect.Swapper(v.Interface())(at, m.one(n))
	case 4:
		if m.chance(5) {
			m.lengthen(field, v, at)
		}
	default:
		m.change(field, v.Index(at))
	}
}

// lengthen makes a list of one element's variants.
func (m *mutator) lengthen(field string, v reflect.Value, at int) {
	m.huge++
	long := reflect.MakeSlice(v.Type(), 0, 1100)
	for range []int{100, 1000, 1001, 1100}[m.one(4)] {
		long = reflect.Append(long, v.Index(at))
	}
	v.Set(long)
	for range 50 {
		e := long.Index(m.one(long.Len()))
		if e.Kind() == reflect.String {
			m.change(field, e)
		}
	}
	// Endpoints and ports that differ, as honest ones do.
	for i := range long.Len() {
		switch e := long.Index(i).Addr().Interface().(type) {
		case *discoveryv1.Endpoint:
			e.Addresses = []string{fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff)}
		case *corev1.ServicePort:
			e.Name, e.Port, e.NodePort = fmt.Sprintf("p%d", i), int32(1+i), 0
		}
	}
}

func (m *mutator) changeMap(v reflect.Value) {
	key := words["key"][m.one(len(words["key"]))]
	if v.IsNil() || m.chance(70) {
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(m.text("value", "")))
		return
	}
	v.SetMapIndex(reflect.ValueOf(key), reflect.Value{}) // delete
}

// text is a word that may stand in a field, or what stood there with a byte changed.
func (m *mutator) text(field, old string) string {
	if old == "" || m.chance(70) {
		list := m.wordsOf(field)
		return list[m.one(len(list))]
	}
	b := []byte(old)
	at := m.one(len(b))
	switch m.one(3) {
	case 0:
		b[at] = byte(m.one(256))
	case 1:
		b = slices.Delete(b, at, at+1)
	case 2:
		b = slices.Insert(b, at, "0123456789.:/,=- a\x00\xff"[m.one(20)])
	}
	return string(b)
}
