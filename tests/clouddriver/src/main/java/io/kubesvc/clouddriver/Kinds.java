package io.kubesvc.clouddriver;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The kinds that Clouddriver knows, and how it writes any. */
class Kinds {
  /** Spinnaker's kind of each; the keys ignore case. */
  static final Map<String, String> SPINNAKER = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);

  /** Kinds without a namespace. */
  private static final Set<String> CLUSTER_SCOPED =
      Set.of(
          "apiService", "clusterRole", "clusterRoleBinding", "customResourceDefinition", "mutatingWebhookConfiguration",
          "namespace", "persistentVolume", "storageClass", "validatingWebhookConfiguration");
  /** Kinds that Kubernetes has no more: kubectl gets none of a list in which one is. */
  private static final Set<String> GONE = Set.of("podPreset", "podSecurityPolicy");

  static {
    put("serverGroups", "cronJob daemonSet job replicaSet statefulSet");
    put("serverGroupManagers", "deployment");
    put("instances", "pod");
    put("loadBalancers", "ingress service");
    put("securityGroups", "networkPolicy");
    put("configs", "configMap persistentVolume persistentVolumeClaim secret");
    put("unclassified", "apiService clusterRole clusterRoleBinding controllerRevision customResourceDefinition event");
    put("unclassified", "horizontalpodautoscaler limitRange mutatingWebhookConfiguration namespace podDisruptionBudget");
    put("unclassified", "podPreset podSecurityPolicy role roleBinding serviceAccount storageClass");
    put("unclassified", "validatingWebhookConfiguration");
  }

  private Kinds() {}

  private static void put(String spinnakerKind, String kinds) {
    Arrays.stream(kinds.split(" ")).forEach(kind -> SPINNAKER.put(kind, spinnakerKind));
  }

  /** Kinds with or without a namespace, in the order of their names. */
  static Stream<String> scoped(boolean namespaced) {
    return SPINNAKER.keySet().stream()
        .filter(kind -> !GONE.contains(kind) && CLUSTER_SCOPED.contains(kind) != namespaced);
  }

  /** {@code replicaSet} for a kind that Clouddriver knows, {@code Kind.group} for a custom one. */
  static String text(JsonNode manifest) {
    var kind = manifest.path("kind").asText();
    var apiVersion = manifest.path("apiVersion").asText();
    var group = apiVersion.contains("/") ? apiVersion.substring(0, apiVersion.indexOf('/')) : "";
    if (group.contains(".") && !group.endsWith(".k8s.io")) {
      return kind + "." + group;
    }
    return SPINNAKER.keySet().stream().filter(kind::equalsIgnoreCase).findFirst().orElse(kind);
  }

  /** {@code deployment web}. */
  static String fullName(JsonNode manifest) {
    var metadata = manifest.path("metadata");
    return text(manifest) + " " + metadata.path("name").asText(metadata.path("generateName").asText());
  }

  static String joined(Stream<String> kinds) {
    return kinds.collect(Collectors.joining(","));
  }
}
