package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** One cycle of an account's caching agents: kinds without a namespace, then many kinds at once in each namespace. */
class CachingCycle {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private final KubernetesAccount account;
  private final Kubectl kubectl;
  private final List<Map<String, String>> found = new ArrayList<>();

  CachingCycle(KubernetesAccount account, Kubectl kubectl) {
    this.account = account;
    this.kubectl = kubectl;
  }

  /** Kind, namespace and name of each object. An account that names its namespaces reads nothing outside of them. */
  List<Map<String, String>> run() throws Exception {
    var definition = account.getCredentials();
    var namespaces = new ArrayList<>(definition.namespaces);
    if (namespaces.isEmpty()) {
      list(null, Stream.of("namespace")).forEach(namespace -> namespaces.add(namespace.at("/metadata/name").asText()));
      namespaces.removeAll(definition.omitNamespaces);
      list(null, allowed(Kinds.scoped(false)));
    }
    for (var namespace : namespaces) {
      list(namespace, allowed(Kinds.scoped(true)));
    }
    return found;
  }

  private Stream<String> allowed(Stream<String> kinds) {
    var definition = account.getCredentials();
    return kinds.filter(
        kind -> definition.kinds.isEmpty() ? !definition.omitKinds.contains(kind) : definition.kinds.contains(kind));
  }

  private JsonNode list(String namespace, Stream<String> kinds) throws Exception {
    var joined = Kinds.joined(kinds);
    if (joined.isEmpty()) {
      return MAPPER.createArrayNode();
    }
    var items = MAPPER.readTree(kubectl.run(account, namespace, "", "-o", "json", "get", joined)).path("items");
    if (!joined.equals("namespace")) {
      for (var item : items) {
        found.add(
            Map.of(
                "kind", Kinds.text(item),
                "namespace", item.at("/metadata/namespace").asText(""),
                "name", item.at("/metadata/name").asText()));
      }
    }
    return items;
  }
}
