package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
)

// describe returns a health server's answer without its times: status, headers that load balancers
// look at, and the body with its fields in order.
func describe(r *http.Response, body []byte) string {
	text := []string{fmt.Sprint(r.StatusCode), r.Header.Get("Content-Type")}
	for _, name := range []string{"X-Content-Type-Options", "X-Load-Balancing-Endpoint-Weight"} {
		if v := r.Header.Get(name); v != "" {
			text = append(text, name+": "+v)
		}
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		return strings.Join(append(text, fmt.Sprintf("%q", body)), ", ")
	}
	return strings.Join(append(text, describeFields("", fields)...), ", ")
}

// describeFields names each field and its value, or just the name of a time.
func describeFields(prefix string, fields map[string]any) (text []string) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		name := prefix + key
		switch v := fields[key].(type) {
		case map[string]any:
			text = append(text, describeFields(name+".", v)...)
		default:
			if key == "lastUpdated" || key == "currentTime" {
				text = append(text, name)
			} else {
				text = append(text, fmt.Sprintf("%s=%v", name, v))
			}
		}
	}
	return text
}

func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}
