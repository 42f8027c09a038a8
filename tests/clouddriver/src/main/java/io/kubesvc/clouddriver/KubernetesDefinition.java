package io.kubesvc.clouddriver;

import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.JsonAutoDetect.Visibility;
import com.fasterxml.jackson.annotation.JsonIgnore;
import com.fasterxml.jackson.annotation.JsonTypeName;
import com.netflix.spinnaker.credentials.definition.CredentialsDefinition;
import com.netflix.spinnaker.fiat.model.resources.Permissions;
import java.util.List;

/**
 * An account as a caller or a file writes it. The names, types, defaults and order of the fields are those of Clouddriver; an
 * unknown field is ignored, an absent one has its default in every answer.
 */
@JsonTypeName("kubernetes")
@JsonAutoDetect(
    fieldVisibility = Visibility.NON_PRIVATE,
    getterVisibility = Visibility.NONE,
    isGetterVisibility = Visibility.NONE)
class KubernetesDefinition implements CredentialsDefinition {
  String name;
  String environment;
  String accountType;
  String context;
  String oauthServiceAccount;
  List<String> oauthScopes;
  String kubeconfigFile;
  String kubeconfigContents;
  String kubectlExecutable;
  Integer kubectlRequestTimeoutSeconds;
  boolean serviceAccount;
  List<String> namespaces = List.of();
  List<String> omitNamespaces = List.of();
  int cacheThreads = 1;
  List<String> requiredGroupMembership = List.of();
  Permissions.Builder permissions = new Permissions.Builder();
  String namingStrategy = "kubernetesAnnotations";
  boolean debug;
  boolean metrics = true;
  boolean checkPermissionsOnStartup = true;
  List<CustomResource> customResources = List.of();
  List<CachingPolicy> cachingPolicies = List.of();
  List<String> kinds = List.of();
  List<String> omitKinds = List.of();
  boolean onlySpinnakerManaged;
  Long cacheIntervalSeconds;
  boolean cacheAllApplicationRelationships;
  RawResources rawResourcesEndpointConfig = new RawResources();

  @Override
  @JsonIgnore(false)
  public String getName() {
    return name;
  }

  /** Says why Clouddriver skips this account at each poll, or null. It is stored all the same. */
  String problem() {
    if (name == null || name.isEmpty()) {
      return "it has no name";
    }
    if (!namespaces.isEmpty() && !omitNamespaces.isEmpty()) {
      return "it has both namespaces and omitNamespaces";
    }
    if (!kinds.isEmpty() && !omitKinds.isEmpty()) {
      return "it has both kinds and omitKinds";
    }
    var raw = rawResourcesEndpointConfig;
    if (!raw.kindExpressions.isEmpty() && !raw.omitKindExpressions.isEmpty()) {
      return "it has both kindExpressions and omitKindExpressions";
    }
    return null;
  }

  @JsonAutoDetect(fieldVisibility = Visibility.NON_PRIVATE)
  static class CustomResource {
    String kubernetesKind;
    String spinnakerKind = "unclassified";
    String deployPriority = "100";
    boolean versioned;
    boolean namespaced = true;
  }

  @JsonAutoDetect(fieldVisibility = Visibility.NON_PRIVATE)
  static class CachingPolicy {
    String kubernetesKind;
    int maxEntriesPerAgent;
  }

  @JsonAutoDetect(fieldVisibility = Visibility.NON_PRIVATE)
  static class RawResources {
    List<String> kindExpressions = List.of();
    List<String> omitKindExpressions = List.of();
    List<String> kindPatterns = List.of();
    List<String> omitKindPatterns = List.of();
  }
}
