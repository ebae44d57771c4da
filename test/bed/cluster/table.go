package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asTable asks for what `kubectl get` prints: the API server knows the columns (Kubernetes API
// concepts, Receiving resources as Tables).
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// Get writes the objects of a path, such as /api/v1/namespaces/default/services/web, as `kubectl
// get` does.
func (c *Cluster) Get(ctx context.Context, to io.Writer, path string) error {
	text, err := c.client.RESTClient().Get().AbsPath(path).SetHeader("Accept", asTable).Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("cluster: get %s: %w", path, err)
	}
	var t metav1.Table
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("cluster: get %s: %w", path, err)
	}
	w := tabwriter.NewWriter(to, 0, 8, 3, ' ', 0)
	for i := range t.ColumnDefinitions {
		if d := &t.ColumnDefinitions[i]; d.Priority == 0 { // the others need `-o wide`
			fmt.Fprintf(w, "%s\t", strings.ToUpper(d.Name))
		}
	}
	for _, row := range t.Rows {
		fmt.Fprintln(w)
		for i, cell := range row.Cells {
			if t.ColumnDefinitions[i].Priority != 0 {
				continue
			}
			if cell != nil {
				fmt.Fprint(w, cell)
			}
			fmt.Fprint(w, "\t")
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}
