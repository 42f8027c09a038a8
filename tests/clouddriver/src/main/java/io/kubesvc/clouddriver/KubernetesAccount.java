package io.kubesvc.clouddriver;

import com.fasterxml.jackson.annotation.JsonIgnore;
import com.fasterxml.jackson.annotation.JsonPropertyOrder;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.netflix.spinnaker.clouddriver.security.AbstractAccountCredentials;
import com.netflix.spinnaker.fiat.model.resources.Permissions;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** A loaded account, as {@code GET /credentials} shows it. Its kubeconfig is a file, which was read when it was loaded. */
@JsonPropertyOrder({"cloudProvider", "name", "environment", "accountType", "cacheThreads", "requiredGroupMembership"})
class KubernetesAccount extends AbstractAccountCredentials<KubernetesDefinition> {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private final KubernetesDefinition definition;
  private final Permissions permissions;
  private final byte[] kubeconfig;
  private Path kubeconfigFile;

  /** Reads the kubeconfig, whose contents are not looked at: a file that cannot be read is all that is noticed. */
  KubernetesAccount(KubernetesDefinition definition) throws IOException {
    this.definition = definition;
    this.permissions = definition.permissions.build();
    if (definition.kubeconfigFile != null && !definition.kubeconfigFile.isEmpty()) {
      kubeconfigFile = Path.of(definition.kubeconfigFile);
      kubeconfig = Files.readAllBytes(kubeconfigFile);
    } else {
      kubeconfig = definition.kubeconfigContents == null ? new byte[0] : definition.kubeconfigContents.getBytes();
    }
  }

  /** Path for kubectl; contents of a definition become a file when they are first needed. */
  synchronized Path kubeconfigFile() throws IOException {
    if (kubeconfigFile == null) {
      kubeconfigFile = Files.createTempFile("kube", "config");
      kubeconfigFile.toFile().deleteOnExit();
      Files.write(kubeconfigFile, kubeconfig);
    }
    return kubeconfigFile;
  }

  @Override
  @JsonIgnore
  public KubernetesDefinition getCredentials() {
    return definition;
  }

  @Override
  public String getCloudProvider() {
    return "kubernetes";
  }

  @Override
  public String getName() {
    return definition.name;
  }

  @Override
  public String getEnvironment() {
    return definition.environment == null ? definition.name : definition.environment;
  }

  @Override
  public String getAccountType() {
    return definition.accountType == null ? definition.name : definition.accountType;
  }

  public int getCacheThreads() {
    return definition.cacheThreads;
  }

  @Override
  public List<String> getRequiredGroupMembership() {
    return permissions.isRestricted() ? List.of() : definition.requiredGroupMembership;
  }

  @Override
  public Permissions getPermissions() {
    return permissions.isRestricted() ? permissions : null;
  }

  public Long getCacheIntervalSeconds() {
    return definition.cacheIntervalSeconds;
  }

  /** Clouddriver lists them in the cluster if the account names none; here they are empty then. */
  public List<String> getNamespaces() {
    return definition.namespaces;
  }

  public Map<String, String> getSpinnakerKindMap() {
    return Kinds.SPINNAKER;
  }

  public List<Object> getDockerRegistries() {
    return List.of();
  }

  /** Two are the same if nothing of the definition or the file differs: only then is an account not loaded anew. */
  @Override
  public boolean equals(Object other) {
    return other instanceof KubernetesAccount account
        && Arrays.equals(kubeconfig, account.kubeconfig)
        && MAPPER.valueToTree(definition).equals(MAPPER.valueToTree(account.definition));
  }

  @Override
  public int hashCode() {
    return definition.name.hashCode();
  }
}
