package status

import (
	"net/http"
	"net/url"
	"testing"
	"time"
)

// TestOver: a time until now is by the daemon's clock, however wrong the client's is.
func TestOver(t *testing.T) {
	q := overQuery(time.Minute)
	since, err := time.Parse(time.RFC3339Nano, q.Get("since")) // for an older daemon
	if age := time.Since(since); err != nil || age < time.Minute || age > time.Hour {
		t.Errorf("since is %v ago, %v", age, err)
	}
	q.Set("since", time.Now().Add(time.Hour).Format(time.RFC3339Nano)) // of a client ahead of the daemon
	got, err := parseSince(&http.Request{URL: &url.URL{RawQuery: q.Encode()}})
	if age := time.Since(got); err != nil || age < time.Minute || age > time.Hour {
		t.Errorf("over 1m is %v ago, %v", age, err)
	}
	for _, wrong := range []string{"1", "-1m", "0s"} {
		q.Set("over", wrong)
		if _, err := parseSince(&http.Request{URL: &url.URL{RawQuery: q.Encode()}}); err == nil {
			t.Errorf("over %s has no error", wrong)
		}
	}
}
