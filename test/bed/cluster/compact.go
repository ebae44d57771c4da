package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Compact has etcd forget its history, as kube-apiserver has it do every few minutes. A
// watch that resumes from before is refused with 410 Gone, once the API server is
// restarted: a running one has the last changes in memory, too.
func (c *Cluster) Compact(ctx context.Context) error {
	// Something must have happened since the last change that anybody watched: a history
	// that ends with it is not too short for him.
	var put struct {
		Header struct{ Revision string }
	}
	key := base64.StdEncoding.EncodeToString([]byte("sluice-compact")) // outside of /registry
	if err := c.etcdCall(ctx, "put", map[string]any{"key": key, "value": key}, &put); err != nil {
		return err
	}
	return c.etcdCall(ctx, "compaction", map[string]any{"revision": put.Header.Revision, "physical": true}, nil)
}

// etcdCall calls a method of etcd's KV service by its JSON gateway (etcd
// api/etcdserverpb/rpc.proto, google.api.http).
func (c *Cluster) etcdCall(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("cluster: etcd %s: %w", method, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cluster: etcd %s: %w", method, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.path("etcd.sock"))
	}}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("cluster: etcd %s: %w", method, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("cluster: etcd %s: %w", method, err)
	}
	return nil
}
