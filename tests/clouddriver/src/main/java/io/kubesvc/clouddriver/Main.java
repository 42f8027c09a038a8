package io.kubesvc.clouddriver;

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.Module;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.netflix.spinnaker.clouddriver.config.AccountDefinitionConfiguration;
import com.netflix.spinnaker.clouddriver.security.AccountCredentials;
import com.netflix.spinnaker.clouddriver.security.AccountCredentialsProvider;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionMapper;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionRepository;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionSource;
import com.netflix.spinnaker.clouddriver.security.DefaultAccountCredentialsProvider;
import com.netflix.spinnaker.clouddriver.security.MapBackedAccountCredentialsRepository;
import com.netflix.spinnaker.config.ErrorConfiguration;
import com.netflix.spinnaker.credentials.CompositeCredentialsRepository;
import com.netflix.spinnaker.credentials.Credentials;
import com.netflix.spinnaker.credentials.CredentialsRepository;
import com.netflix.spinnaker.credentials.MapBackedCredentialsRepository;
import com.netflix.spinnaker.credentials.NoopCredentialsLifecycleHandler;
import com.netflix.spinnaker.credentials.definition.BasicCredentialsLoader;
import com.netflix.spinnaker.credentials.definition.CredentialsDefinitionSource;
import com.netflix.spinnaker.credentials.definition.CredentialsLoader;
import com.netflix.spinnaker.credentials.poller.PollerConfiguration;
import com.netflix.spinnaker.credentials.poller.PollerConfigurationProperties;
import com.netflix.spinnaker.filters.AuthenticatedRequestFilter;
import com.netflix.spinnaker.kork.secrets.SecretConfiguration;
import com.netflix.spinnaker.kork.secrets.SecretManager;
import com.zaxxer.hikari.HikariDataSource;
import java.util.List;
import java.util.Map;
import javax.sql.DataSource;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.ImportAutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.http.HttpMessageConvertersAutoConfiguration;
import org.springframework.boot.autoconfigure.jackson.Jackson2ObjectMapperBuilderCustomizer;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.DispatcherServletAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.error.ErrorMvcAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.HttpEncodingAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.ServletWebServerFactoryAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.WebMvcAutoConfiguration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.scheduling.annotation.EnableScheduling;

/** Starts what stands in for Clouddriver; README.md lists the settings. */
@Configuration(proxyBeanMethods = false)
@EnableScheduling
@ImportAutoConfiguration({
  ServletWebServerFactoryAutoConfiguration.class,
  DispatcherServletAutoConfiguration.class,
  ErrorMvcAutoConfiguration.class,
  WebMvcAutoConfiguration.class,
  HttpMessageConvertersAutoConfiguration.class,
  HttpEncodingAutoConfiguration.class,
  JacksonAutoConfiguration.class,
})
// Clouddriver's service exists only if there is a repository, and its own policy unless there is one.
@Import({
  Main.Storage.class,
  Fiat.class,
  AccountDefinitionConfiguration.class,
  SecretConfiguration.class,
  ErrorConfiguration.class,
  CredentialsRoutes.class,
  Kubectl.class,
  OperationRoutes.class,
})
class Main {
  private static final Logger LOG = LoggerFactory.getLogger(Main.class);

  public static void main(String[] arguments) {
    var application = new SpringApplication(Main.class);
    application.setDefaultProperties(
        Map.of(
            "account.storage.additionalScanPackages", "io.kubesvc.clouddriver",
            "server.address", "127.0.0.1",
            "server.tomcat.threads.max", "32",
            "server.servlet.encoding.force", "true",
            "spring.main.banner-mode", "off",
            "logging.pattern.console", "%d{HH:mm:ss.SSS} %-5level %logger{0}: %m%n%xEx{3}"));
    application.run(arguments);
  }

  /** The tables, if {@code account.storage.enabled}. */
  @Configuration(proxyBeanMethods = false)
  @ConditionalOnProperty("account.storage.enabled")
  static class Storage {
    @Bean
    DataSource database(
        @Value("${sql.url}") String url, @Value("${sql.user:}") String user, @Value("${sql.password:}") String password) {
      var pool = new HikariDataSource();
      pool.setJdbcUrl(url);
      pool.setUsername(user);
      pool.setPassword(password);
      pool.setMinimumIdle(1);
      pool.setMaximumPoolSize(8);
      return pool;
    }

    @Bean
    AccountDefinitionRepository accounts(
        DataSource database, @Value("${sql.url}") String url, AccountDefinitionMapper mapper) {
      return new AccountTable(database, url.startsWith("jdbc:postgresql:"), mapper);
    }
  }

  /** Answers as Clouddriver's: no nulls, and no complaint about fields that are unknown. */
  @Bean
  Jackson2ObjectMapperBuilderCustomizer json(List<Module> modules) {
    return builder ->
        builder
            .serializationInclusion(JsonInclude.Include.NON_NULL)
            .featuresToDisable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
            .modulesToInstall(modules.toArray(Module[]::new));
  }

  @Bean
  AuthenticatedRequestFilter users() {
    return new AuthenticatedRequestFilter(true);
  }

  @Bean
  CredentialsRepository<KubernetesAccount> loadedAccounts() {
    return new MapBackedCredentialsRepository<>("kubernetes", new NoopCredentialsLifecycleHandler<>());
  }

  @Bean
  @SuppressWarnings({"unchecked", "rawtypes"})
  AccountCredentialsProvider accountCredentials(CredentialsRepository<KubernetesAccount> loaded) {
    var all = new CompositeCredentialsRepository<AccountCredentials<?>>((List) List.of(loaded));
    return new DefaultAccountCredentialsProvider(new MapBackedAccountCredentialsRepository(), all);
  }

  /** Stored accounts before those of the file, each name once: Clouddriver's own source. */
  @Bean(initMethod = "load")
  BasicCredentialsLoader<KubernetesDefinition, KubernetesAccount> loader(
      ObjectProvider<AccountDefinitionRepository> stored,
      CredentialsRepository<KubernetesAccount> loaded,
      ObjectMapper mapper,
      SecretManager secrets,
      @Value("${account.storage.kubernetes.enabled:false}") boolean kubernetesStorage,
      @Value("${accounts.file:}") String file,
      @Value("${accounts.load-delay-ms:0}") long delay) {
    CredentialsDefinitionSource<KubernetesDefinition> source = new AccountsFile(file, mapper, secrets);
    var table = stored.getIfAvailable();
    if (table != null && kubernetesStorage) {
      source = new AccountDefinitionSource<>(table, KubernetesDefinition.class, List.of(source));
    }
    var all = source;
    var begin = System.nanoTime() + delay * 1_000_000;
    return new BasicCredentialsLoader<>(
        () -> System.nanoTime() < begin ? List.of() : all.getCredentialsDefinitions(), Main::account, loaded);
  }

  /** A bad account is skipped, and nobody but the log learns of it. */
  private static KubernetesAccount account(KubernetesDefinition definition) {
    try {
      var problem = definition.problem();
      if (problem == null) {
        return new KubernetesAccount(definition);
      }
      LOG.warn("account {} is skipped: {}", definition.name, problem);
    } catch (Exception problem) {
      LOG.warn("account {} is skipped: {}", definition.name, problem.toString());
    }
    return null;
  }

  @Bean
  @ConditionalOnProperty("credentials.poller.enabled")
  PollerConfiguration poller(
      PollerConfigurationProperties properties, ObjectProvider<CredentialsLoader<? extends Credentials>> loaders) {
    return new PollerConfiguration(properties, loaders);
  }

  @Bean
  @ConfigurationProperties("credentials.poller")
  PollerConfigurationProperties pollerProperties() {
    return new PollerConfigurationProperties();
  }
}
